from __future__ import annotations

import itertools

import pytest

from lingvo_pipe.pipeline.check import check
from lingvo_pipe.pipeline.schedule import (
    Kind,
    Op,
    Schedule,
    dependencies,
    forward_only,
    gpipe,
)

SIZES = list(itertools.product([1, 2, 3, 5], [1, 2, 4, 7]))


@pytest.mark.parametrize(("num_stages", "num_micro_batches"), SIZES)
def test_gpipe_does_everything_once_and_can_be_run(
    num_stages: int, num_micro_batches: int
) -> None:
    schedule = gpipe(num_stages, num_micro_batches)
    check(schedule)
    ops = [op for _, op in schedule.ops()]
    assert len(ops) == len(set(ops)) == 2 * num_stages * num_micro_batches
    assert schedule.device_of_stage() == {k: k for k in range(num_stages)}
    for column in schedule.columns:
        kinds = [op.kind for op in column]
        assert kinds == sorted(kinds, key=list(Kind).index), "forwards come first"


@pytest.mark.parametrize(("num_stages", "num_micro_batches"), SIZES)
def test_gpipe_takes_as_long_as_the_paper_says(
    num_stages: int, num_micro_batches: int
) -> None:
    """Each operation one unit of time: 2·(M + K - 1) in all, so the bubble is known."""
    assert _makespan(gpipe(num_stages, num_micro_batches)) == 2 * (
        num_micro_batches + num_stages - 1
    )
    assert _makespan(forward_only(num_stages, num_micro_batches)) == (
        num_micro_batches + num_stages - 1
    )


def test_forward_only_has_no_backward() -> None:
    assert not forward_only(3, 2).has_backward
    assert gpipe(3, 2).has_backward
    check(forward_only(3, 2))


def test_dependencies_are_the_neighbours() -> None:
    assert dependencies(Op(Kind.FORWARD, 1, 0), 3) == []
    assert dependencies(Op(Kind.FORWARD, 1, 2), 3) == [Op(Kind.FORWARD, 1, 1)]
    assert dependencies(Op(Kind.BACKWARD, 1, 1), 3) == [
        Op(Kind.FORWARD, 1, 1),
        Op(Kind.BACKWARD, 1, 2),
    ]
    assert dependencies(Op(Kind.BACKWARD, 1, 2), 3) == [Op(Kind.FORWARD, 1, 2)]


@pytest.mark.parametrize("sizes", [(0, 1), (1, 0), (-2, 3)])
def test_sizes_below_one_are_refused(sizes: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="needs at least 1 of its"):
        gpipe(*sizes)


def _makespan(schedule: Schedule) -> int:
    """Time until all columns are done, every operation taking one unit."""
    finished: dict[Op, int] = {}
    free = [0] * schedule.num_devices
    positions = [0] * schedule.num_devices
    while any(p < len(c) for p, c in zip(positions, schedule.columns, strict=True)):
        for device, column in enumerate(schedule.columns):
            if positions[device] == len(column):
                continue
            op = column[positions[device]]
            needs = dependencies(op, schedule.num_stages)
            if all(need in finished for need in needs):
                ready = max([free[device], *(finished[need] for need in needs)])
                finished[op] = free[device] = ready + 1
                positions[device] += 1
    return max(free)
