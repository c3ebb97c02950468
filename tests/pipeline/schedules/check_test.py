from __future__ import annotations

import itertools
import random
import re
from collections import deque

import pytest

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.pipeline.schedules.by_rule import gpipe, zero_bubble
from lingvo_pipe.pipeline.schedules.check import check, join_problems
from lingvo_pipe.pipeline.schedules.schedule import Kind, Op, Schedule
from tests.pipeline.schedules.event_simulation import makespan
from tests.pipeline.schedules.every_schedule import every_schedule

F, R, B, W, _, AWAY, BACK = Kind


def _one_device(*column: Op, number: int = 1) -> Schedule:
    """Returns a schedule of one stage and this number of micro-batches."""
    return Schedule(1, number, (column,))


_FEW = gpipe(2, 4)
_SLIPPED = Op(F, 1, 1)


@pytest.mark.parametrize(
    ("schedule", "named"),
    [
        (
            Schedule(2, 1, ((Op(F, 0, 0), Op(B, 0, 0), Op(B, 0, 1)), (Op(F, 0, 1),))),
            rf"device 1\b.*{Op(F, 0, 1)}.*device 0\b",
        ),
        # The stage belongs to the device with most of its operations.
        (
            Schedule(
                2,
                4,
                (
                    (_SLIPPED, *_FEW.columns[0]),
                    tuple(op for op in _FEW.columns[1] if op != _SLIPPED),
                ),
            ),
            rf"^\D*device 0\D*{_SLIPPED}\D*stage 1\D*device 1\W*$",
        ),
        (
            _one_device(Op(F, 0, 0), Op(B, 0, 0), Op(F, 0, 7)),
            rf"{Op(F, 0, 7)}\D*\bstage\D* 0\.\.0\b",
        ),
        (
            _one_device(Op(F, 0, 0), Op(B, 0, 0), Op(F, 9, 0)),
            rf"{Op(F, 9, 0)}\D*\bmicro-batch\D* 0\.\.0\b",
        ),
        # Every missing and every doubled operation is named, and many are counted.
        (
            _one_device(Op(F, 0, 0), Op(F, 0, 0), Op(B, 0, 0), number=2),
            rf"{Op(F, 0, 0)}\D*\b2\b.*{Op(F, 1, 0)}\D*\b0\b.*{Op(B, 1, 0)}\D*\b0\b",
        ),
        (Schedule(2, 12, ((Op(F, 0, 0),), ())), r"\b13\b\D*$"),
        # Recomputations and weight gradients need backward passes.
        (_one_device(Op(F, 0, 0), Op(R, 0, 0)), rf"{Op(B, 0, 0)}\D*\b0\b"),
        (_one_device(Op(F, 0, 0), Op(W, 0, 0)), rf"{Op(B, 0, 0)}\D*\b0\b"),
        # All weight gradients are separate, or none.
        (
            Schedule(1, 3, (zero_bubble(1, 3).columns[0][:-1],)),
            rf"{Op(W, 2, 0)}\D*\b0\b",
        ),
        (
            _one_device(Op(F, 0, 0), Op(R, 0, 0), Op(R, 0, 0), Op(B, 0, 0)),
            rf"{Op(R, 0, 0)}\D*\b2\b",
        ),
        # A recomputation stands between forward and backward.
        (
            _one_device(Op(R, 0, 0), Op(F, 0, 0), Op(B, 0, 0)),
            rf"device 0\D*{Op(R, 0, 0)}\D*{Op(F, 0, 0)}",
        ),
        (
            _one_device(Op(F, 0, 0), Op(B, 0, 0), Op(R, 0, 0)),
            rf"device 0\D*{Op(B, 0, 0)}\D*{Op(R, 0, 0)}",
        ),
        # Micro-batches are in order.
        (
            _one_device(Op(F, 0, 0), Op(F, 1, 0), Op(B, 1, 0), Op(B, 0, 0), number=2),
            rf"device 0\D*{Op(B, 0, 0)}\D*\b1\b",
        ),
    ],
)
def test_what_cannot_run_is_named(schedule: Schedule, named: str) -> None:
    with pytest.raises(UserValueError, match=named):
        check(schedule)


@pytest.mark.parametrize("number", [1, 10, 11, 12])
def test_ten_problems_are_named_and_the_others_counted(number: int) -> None:
    numbers = re.findall(r"\d+", join_problems([f"{100 + i}" for i in range(number)]))
    unnamed = [str(number - 10)] if number > 10 else []
    assert numbers == [str(100 + i) for i in range(min(number, 10))] + unnamed


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
        before = {
            F: [],
            R: [F],
            AWAY: [F],
            BACK: [AWAY],
            B: [F, R, BACK],
            W: [F, R, B],
        }[kind]
        for needed in (Op(k, micro_batch, stage) for k in before):
            if needed in schedule and needed not in done:
                return False
        away, back = (Op(k, micro_batch, stage) in schedule for k in (AWAY, BACK))
        if kind in (BACK, B) and away != back:
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
