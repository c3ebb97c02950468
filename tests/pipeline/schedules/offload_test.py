"""Offloaded micro-batches leave few on the device, and go in order."""

from __future__ import annotations

import pytest

from lingvo_pipe.pipeline.schedules.by_rule import gpipe, one_f_one_b
from lingvo_pipe.pipeline.schedules.csv_file import format_csv
from lingvo_pipe.pipeline.schedules.offload import offloaded, roles_in_stage
from lingvo_pipe.pipeline.schedules.recompute import recomputed
from lingvo_pipe.pipeline.schedules.schedule import Kind, Op, Schedule
from tests.pipeline.schedules.every_schedule import plain_schedules
from tests.pipeline.schedules.stash_sizes import StashSizes, stash_sizes
from tests.support.errors import fails

F, R, B, W, _, AWAY, BACK = Kind


def test_copies_are_added_and_nothing_else_changes() -> None:
    for name, schedule in plain_schedules():
        result = offloaded(schedule)
        for column, plain in zip(result.columns, schedule.columns, strict=True):
            assert [op for op in column if op.kind not in (AWAY, BACK)] == list(
                plain
            ), name
        away = {op[1:] for _, op in result.ops() if op.kind is AWAY}
        assert away == {op[1:] for _, op in result.ops() if op.kind is BACK}, name


@pytest.mark.parametrize("policy", ["never", "always"])
def test_a_micro_batch_is_offloaded_if_an_operation_would_run_meanwhile(
    policy: str,
) -> None:
    for name, plain in plain_schedules():
        schedule = recomputed(plain, policy)
        result = offloaded(schedule)
        for column in schedule.columns:
            for i, op in enumerate(column):
                if op.kind is B:
                    own = [op._replace(kind=kind) for kind in (F, R)]
                    between = list(column[column.index(own[0]) + 1 : i])
                    between = between[:-1] if own[1] in between[-1:] else between
                    expected = len(between) >= 3
                    assert result.offloads(op) == expected, name


@pytest.mark.parametrize("num_devices", [1, 2, 4])
@pytest.mark.parametrize("policy", ["never", "always"])
def test_gpipe_holds_three_micro_batches_however_many_there_are(
    num_devices: int, policy: str
) -> None:
    for num_micro_batches in (6, 9, 30):
        schedule = offloaded(recomputed(gpipe(num_devices, num_micro_batches), policy))
        for device in range(num_devices):
            sizes = stash_sizes(schedule, device)
            on_device = [a + b - c for a, b, c in sizes]
            assert max(on_device) == 3
            most = max(size.offloaded for size in sizes)
            assert most == num_micro_batches - (2 if policy == "never" else 1)


def test_each_copy_runs_beside_an_operation() -> None:
    assert format_csv(offloaded(gpipe(1, 4))) == (
        "F0.0,F1.0,O0.0,F2.0,O1.0,L0.0,F3.0,O2.0,L1.0,B0.0,O3.0,L2.0,B1.0,L3.0,B2.0,"
        "B3.0\n"
    )


def test_the_last_stage_of_1f1b_offloads_nothing() -> None:
    schedule = one_f_one_b(5, 9)
    assert offloaded(schedule).columns[-1] == schedule.columns[-1]
    assert AWAY in {op.kind for op in offloaded(schedule).columns[0]}


def test_what_has_no_backward_stays_as_it_is() -> None:
    for schedule in (gpipe(2, 3).forward_part(), Schedule(0, 0, ((), ()))):
        assert offloaded(schedule) == schedule


def test_an_offloaded_schedule_is_not_offloaded_again() -> None:
    with fails(path="offload", got="always"):
        offloaded(offloaded(gpipe(1, 4)))


def test_evaluation_copies_nothing() -> None:
    assert offloaded(gpipe(2, 6)).forward_part() == gpipe(2, 6).forward_part()


def test_dependencies_of_copies() -> None:
    schedule = offloaded(gpipe(2, 4))
    assert schedule.dependencies(Op(AWAY, 1, 0)) == [Op(F, 1, 0)]
    assert schedule.dependencies(Op(BACK, 1, 0)) == [Op(AWAY, 1, 0)]
    assert Op(BACK, 1, 0) in schedule.dependencies(Op(B, 1, 0))


def test_a_recomputed_cell_is_not_offloaded() -> None:
    recomputed_, away = [True, False, True, False], [True, True, False, False]
    none = [False] * 4
    roles = roles_in_stage({F, B}, recomputed_, away)
    assert roles == (recomputed_, none)
    roles = roles_in_stage({F, B, AWAY, BACK}, recomputed_, away)
    assert roles == ([False, False, True, False], away)
    roles = roles_in_stage({F, R, B, AWAY, BACK}, recomputed_, away)
    assert roles == (recomputed_, [False, True, False, False])


def test_sizes_of_a_small_schedule() -> None:
    sizes = stash_sizes(offloaded(gpipe(1, 4)), 0)
    assert sizes[:4] == [
        StashSizes(0, 1),  # F0
        StashSizes(0, 2),  # F1
        StashSizes(0, 2, 1),  # O0
        StashSizes(0, 3, 1),  # F2
    ]
