from __future__ import annotations

import pytest

from lingvo_pipe.pipeline.schedules.by_rule import gpipe, interleaved, zero_bubble
from lingvo_pipe.pipeline.schedules.recompute import recomputed
from lingvo_pipe.pipeline.schedules.schedule import Kind, Op

F, R, B, W, *_ = Kind


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (Op(F, 1, 0), []),
        (Op(F, 1, 2), [Op(F, 1, 1)]),
        (Op(B, 1, 1), [Op(F, 1, 1), Op(B, 1, 2)]),
        (Op(B, 1, 2), [Op(F, 1, 2)]),
        (Op(W, 1, 1), [Op(B, 1, 1)]),
    ],
    ids=str,
)
def test_dependencies_are_the_neighbors(op: Op, expected: list[Op]) -> None:
    assert zero_bubble(3, 2).dependencies(op) == expected


def test_a_backward_depends_on_its_recomputation() -> None:
    schedule = recomputed(gpipe(2, 2), "except_last")
    assert schedule.dependencies(Op(R, 0, 0)) == [Op(F, 0, 0)]
    assert schedule.dependencies(Op(B, 0, 0)) == [Op(R, 0, 0), Op(B, 0, 1)]
    assert schedule.dependencies(Op(B, 1, 0)) == [Op(F, 1, 0), Op(B, 1, 1)]


def test_what_it_contains() -> None:
    schedule = interleaved(2, 3, 2)
    assert schedule.num_devices == 2
    assert schedule.has_backward
    assert not gpipe(2, 3).forward_part().has_backward
    assert all(op in schedule for _, op in schedule.ops())
    assert Op(F, 2, 3) in schedule
    assert Op(R, 2, 3) not in schedule
    assert Op(F, 3, 3) not in schedule
    assert schedule.device_of_stage() == {0: 0, 1: 1, 2: 0, 3: 1}
