from __future__ import annotations

import itertools
import random
from collections import deque

import pytest

from lingvo_pipe.pipeline.check import check
from lingvo_pipe.pipeline.schedule import Kind, Op, Schedule, gpipe

F, B = Kind.FORWARD, Kind.BACKWARD


def test_a_misplaced_operation_is_named() -> None:
    schedule = Schedule(2, 1, ((Op(F, 0, 0), Op(B, 0, 0), Op(B, 0, 1)), (Op(F, 0, 1),)))
    with pytest.raises(ValueError, match="stage 1 belongs to device"):
        check(schedule)


@pytest.mark.parametrize(
    ("op", "words"), [(Op(F, 0, 7), "stages are 0..0"), (Op(F, 9, 0), "are 0..0")]
)
def test_operations_out_of_range_are_named(op: Op, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check(Schedule(1, 1, ((Op(F, 0, 0), Op(B, 0, 0), op),)))


def test_every_missing_and_every_doubled_operation_is_named() -> None:
    column = (Op(F, 0, 0), Op(F, 0, 0), Op(B, 0, 0))
    with pytest.raises(ValueError, match="can't be run") as error:
        check(Schedule(1, 2, (column,)))
    text = str(error.value)
    assert "the forward of micro-batch 0 on stage 0 stands 2 times" in text
    assert "the forward of micro-batch 1 on stage 0 stands 0 times" in text
    assert "the backward of micro-batch 1 on stage 0 stands 0 times" in text


def test_micro_batches_out_of_order_are_refused() -> None:
    column = (Op(F, 0, 0), Op(F, 1, 0), Op(B, 1, 0), Op(B, 0, 0))
    with pytest.raises(ValueError, match="ascending order"):
        check(Schedule(1, 2, (column,)))


def test_a_deadlock_is_explained() -> None:
    columns = (
        (Op(F, 0, 0), Op(B, 0, 0), Op(F, 1, 0), Op(B, 1, 0)),
        (Op(F, 0, 1), Op(F, 1, 1), Op(B, 0, 1), Op(B, 1, 1)),
    )
    with pytest.raises(ValueError, match="waits forever") as error:
        check(Schedule(2, 2, columns))
    assert (
        "device 0 waits forever in the backward of micro-batch 0 on stage 0 for the "
        "backward of micro-batch 0 on stage 1" in str(error.value)
    )


def test_whatever_passes_runs_and_whatever_fails_does_not() -> None:
    """Against brute force: columns shuffled, executed with queues between devices."""
    rng = random.Random(0)
    passed = refused = 0
    for num_stages, num_micro_batches in itertools.product([1, 2, 3], [1, 2, 3]):
        for _ in range(60):
            columns = [list(c) for c in gpipe(num_stages, num_micro_batches).columns]
            for column in columns:
                for _ in range(rng.randrange(4)):
                    i = rng.randrange(len(column) - 1)
                    column[i : i + 2] = reversed(column[i : i + 2])
            schedule = Schedule(
                num_stages, num_micro_batches, tuple(map(tuple, columns))
            )
            try:
                check(schedule)
            except ValueError:
                refused += 1
                assert not _runs(schedule) or not _ascends(schedule)
            else:
                passed += 1
                assert _runs(schedule)
                assert _ascends(schedule)
    assert passed > 20
    assert refused > 20


def _ascends(schedule: Schedule) -> bool:
    """Whether each stage takes micro-batches in order, as equal bytes need it."""
    return all(
        ops == sorted(ops)
        for kind, stage in itertools.product(Kind, range(schedule.num_stages))
        for ops in [
            [op.micro_batch for _, op in schedule.ops() if op[::2] == (kind, stage)]
        ]
    )


def _runs(schedule: Schedule) -> bool:
    """Runs the columns with queues as channels; messages must be the wanted ones."""
    queues: dict[tuple[Kind, int], deque[int]] = {}
    stashed: set[tuple[int, int]] = set()
    left = [deque(column) for column in schedule.columns]

    def run(op: Op) -> bool:
        kind, micro_batch, stage = op
        last = schedule.num_stages - 1
        if kind is B and (micro_batch, stage) not in stashed:
            return False
        receives = stage > 0 if kind is F else stage < last
        if receives:
            queue = queues.setdefault((kind, stage), deque())
            if not queue or queue.popleft() != micro_batch:
                return False
        if kind is F:
            stashed.add((micro_batch, stage))
        target = stage + 1 if kind is F else stage - 1
        queues.setdefault((kind, target), deque()).append(micro_batch)
        return True

    moved = True
    while moved:
        moved = False
        for column in left:
            while column and run(column[0]):
                column.popleft()
                moved = True
    return not any(left)
