from __future__ import annotations

import itertools
import random
from collections import deque

import pytest

from lingvo_pipe.pipeline.schedules.by_rule import gpipe, zero_bubble
from lingvo_pipe.pipeline.schedules.check import check
from lingvo_pipe.pipeline.schedules.schedule import Kind, Op, Schedule
from tests.pipeline.schedules.event_simulation import makespan
from tests.pipeline.schedules.every_schedule import every_schedule

F, R, B, W, _ = Kind


def test_a_misplaced_operation_is_named() -> None:
    schedule = Schedule(2, 1, ((Op(F, 0, 0), Op(B, 0, 0), Op(B, 0, 1)), (Op(F, 0, 1),)))
    with pytest.raises(ValueError, match=rf"device 1\b.*{Op(F, 0, 1)}.*device 0\b"):
        check(schedule)


def test_a_stage_belongs_to_the_device_with_most_of_its_operations() -> None:
    """Not to the device where it comes up first."""
    first, second = gpipe(2, 4).columns
    slipped = Op(F, 1, 1)
    rest = tuple(op for op in second if op != slipped)
    alone = rf"^\D*device 0\D*{slipped}\D*stage 1\D*device 1\W*$"
    with pytest.raises(ValueError, match=alone):
        check(Schedule(2, 4, ((slipped, *first), rest)))


@pytest.mark.parametrize(
    ("op", "of_which"), [(Op(F, 0, 7), "stage"), (Op(F, 9, 0), "micro-batch")]
)
def test_operations_out_of_range_are_named(op: Op, of_which: str) -> None:
    with pytest.raises(ValueError, match=rf"{op}\D*\b{of_which}\D* 0\.\.0\b"):
        check(Schedule(1, 1, ((Op(F, 0, 0), Op(B, 0, 0), op),)))


def test_every_missing_and_every_doubled_operation_is_named() -> None:
    column = (Op(F, 0, 0), Op(F, 0, 0), Op(B, 0, 0))
    numbers = ((Op(F, 0, 0), 2), (Op(F, 1, 0), 0), (Op(B, 1, 0), 0))
    named = ".*".join(rf"{op}\D*\b{number}\b" for op, number in numbers)
    with pytest.raises(ValueError, match=named):
        check(Schedule(1, 2, (column,)))


def test_many_problems_are_counted() -> None:
    with pytest.raises(ValueError, match=r"\b13\b\D*$"):
        check(Schedule(2, 12, ((Op(F, 0, 0),), ())))


@pytest.mark.parametrize("kind", [R, W], ids=str)
def test_recomputations_and_weight_gradients_need_backward_passes(kind: Kind) -> None:
    with pytest.raises(ValueError, match=rf"{Op(B, 0, 0)}\D*\b0\b"):
        check(Schedule(1, 1, ((Op(F, 0, 0), Op(kind, 0, 0)),)))


def test_all_weight_gradients_are_separate_or_none() -> None:
    (column,) = zero_bubble(1, 3).columns
    with pytest.raises(ValueError, match=rf"{Op(W, 2, 0)}\D*\b0\b"):
        check(Schedule(1, 3, (column[:-1],)))


def test_a_second_recomputation_is_refused() -> None:
    column = (Op(F, 0, 0), Op(R, 0, 0), Op(R, 0, 0), Op(B, 0, 0))
    with pytest.raises(ValueError, match=rf"{Op(R, 0, 0)}\D*\b2\b"):
        check(Schedule(1, 1, (column,)))


@pytest.mark.parametrize(
    ("column", "waiting", "awaited"),
    [
        ((Op(R, 0, 0), Op(F, 0, 0), Op(B, 0, 0)), R, F),
        ((Op(F, 0, 0), Op(B, 0, 0), Op(R, 0, 0)), B, R),
    ],
    ids=["before_forward", "after_backward"],
)
def test_a_recomputation_stands_between_forward_and_backward(
    column: tuple[Op, ...], waiting: Kind, awaited: Kind
) -> None:
    named = rf"device 0\D*{Op(waiting, 0, 0)}\D*{Op(awaited, 0, 0)}"
    with pytest.raises(ValueError, match=named):
        check(Schedule(1, 1, (column,)))


def test_micro_batches_out_of_order_are_refused() -> None:
    column = (Op(F, 0, 0), Op(F, 1, 0), Op(B, 1, 0), Op(B, 0, 0))
    with pytest.raises(ValueError, match=rf"device 0\D*{Op(B, 0, 0)}\D*\b1\b"):
        check(Schedule(1, 2, (column,)))


def test_a_deadlock_is_explained() -> None:
    columns = (
        (Op(F, 0, 0), Op(B, 0, 0), Op(F, 1, 0), Op(B, 1, 0)),
        (Op(F, 0, 1), Op(F, 1, 1), Op(B, 0, 1), Op(B, 1, 1)),
    )
    with pytest.raises(ValueError, match=rf"device 0\D*{Op(B, 0, 0)}\D*{Op(B, 0, 1)}"):
        check(Schedule(2, 2, columns))
    with pytest.raises(ValueError, match=str(Op(B, 0, 0))):
        makespan(Schedule(2, 2, columns), dict.fromkeys(Kind, 1))


def test_schedules_pass_if_and_only_if_they_run() -> None:
    """Against brute force: neighbors in columns exchanged, then run with queues."""
    rng = random.Random(0)
    passed = refused = 0
    for _, schedule in every_schedule():
        if schedule.num_stages * schedule.num_micro_batches > 12:
            continue
        for _ in range(10):
            columns = [list(column) for column in schedule.columns]
            for column in columns:
                for _ in range(rng.randrange(3) if len(column) > 1 else 0):
                    i = rng.randrange(len(column) - 1)
                    column[i : i + 2] = reversed(column[i : i + 2])
            runs = _passes_and_runs_alike(schedule, columns)
            passed += runs
            refused += not runs
    assert passed > 500
    assert refused > 500


def test_no_operation_can_be_left_out_doubled_or_moved_away() -> None:
    """Only a RECOMPUTE may be left out."""
    rng = random.Random(0)
    for _, schedule in every_schedule():
        if schedule.num_micro_batches == 1:
            continue  # The rest may be a valid schedule of another kind.
        for change in ("leave out", "double", "move"):
            columns = [list(column) for column in schedule.columns]
            device = rng.randrange(len(columns))
            column = columns[device]
            i = rng.randrange(len(column))
            op = column[i]
            if change != "double":
                column.pop(i)
            if change == "double":
                column.insert(rng.randrange(len(column) + 1), op)
            if change == "move":
                columns.append([op])
            if change == "leave out" and op.kind is R:
                assert _passes_and_runs_alike(schedule, columns)
            else:
                with pytest.raises(ValueError, match=r"micro-batch \d.*\bstage \d"):
                    check(_with_columns(schedule, columns))


def _with_columns(schedule: Schedule, columns: list[list[Op]]) -> Schedule:
    return Schedule(
        schedule.num_stages, schedule.num_micro_batches, tuple(map(tuple, columns))
    )


def _passes_and_runs_alike(schedule: Schedule, columns: list[list[Op]]) -> bool:
    """Returns True if it runs; fails if `check` and brute force disagree."""
    changed = _with_columns(schedule, columns)
    if _runs(changed) and _ascends(changed):
        check(changed)
        return True
    with pytest.raises(ValueError, match=r"micro-batch \d.*\bstage \d"):
        check(changed)
    return False


def _ascends(schedule: Schedule) -> bool:
    """Returns True if each stage takes micro-batches in order, for equal bytes."""
    return all(
        ops == sorted(ops)
        for kind, stage in itertools.product(Kind, range(schedule.num_stages))
        for ops in [
            [op.micro_batch for _, op in schedule.ops() if op[::2] == (kind, stage)]
        ]
    )


def _runs(schedule: Schedule) -> bool:
    """Runs the columns with queues as channels; checks each message."""
    queues: dict[tuple[Kind, int], deque[int]] = {}
    done: set[Op] = set()
    left = [deque(column) for column in schedule.columns]
    last_stage = schedule.num_stages - 1

    def run(op: Op) -> bool:
        kind, micro_batch, stage = op
        before = {F: [], R: [F], B: [F, R], W: [F, R, B]}[kind]
        for needed in (Op(k, micro_batch, stage) for k in before):
            if needed in schedule and needed not in done:
                return False
        if kind in (F, B) and stage != (0 if kind is F else last_stage):
            queue = queues.setdefault((kind, stage), deque())
            if not queue or queue.popleft() != micro_batch:
                return False
        target = stage + 1 if kind is F else stage - 1
        queues.setdefault((kind, target), deque()).append(micro_batch)
        done.add(op)
        return True

    moved = True
    while moved:
        moved = False
        for column in left:
            while column and run(column[0]):
                column.popleft()
                moved = True
    return not any(left)
