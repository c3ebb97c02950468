"""Candidates are the ways to run a model for which there is a schedule."""

from __future__ import annotations

import dataclasses

import pytest

from lingvo_pipe.pipeline.schedules.schedule import Kind
from lingvo_pipe.planner.resources.candidate import Candidate, candidates
from tests.planner.made_up_model import BATCH_SIZE, NUM_CELLS, schedule_of


def shapes(num_devices: int, num_cells: int, rows: int) -> set[tuple[int, int, int]]:
    """Returns R, K and M of all candidates."""
    return {
        (c.num_replicas, c.num_devices, c.num_micro_batches)
        for c in candidates(num_devices, num_cells, rows)
    }


def test_the_shapes_of_three_devices() -> None:
    """A candidate uses all or some: two replicas of one device leave one."""
    alone = {(1, k, m) for k in (1, 2, 3) for m in (1, 2, 3, 6)}
    assert shapes(3, 5, 6) == alone | {(2, 1, 2), (2, 1, 6), (3, 1, 3), (3, 1, 6)}


def test_a_stage_has_a_cell() -> None:
    assert shapes(3, 2, 1) == {(1, 1, 1), (1, 2, 1)}


def test_a_number_that_divides_nothing_can_be_the_best() -> None:
    """Six equal cells are even on six of eight devices, and not on four."""
    assert {k for _, k, _ in shapes(8, 6, 1)} == {1, 2, 3, 4, 5, 6}


def test_among_many_devices_as_many_as_cells_are_tried() -> None:
    found = list(candidates(64, 6, 4))
    alone = [c for c in found if c.num_replicas == 1]
    assert {c.num_devices for c in alone} == {1, 2, 3, 4, 6}
    assert {c.num_stages for c in alone if c.schedule == "interleaved"} == {4, 6}
    assert {c.num_replicas for c in found if c.num_devices == 6} == {1, 2, 4}
    # Three rows are enough for rounds of three micro-batches.
    two = [c for c in candidates(64, 6, 3) if c.stages_per_device == 2]
    assert {c.num_stages for c in two if c.schedule == "interleaved"} == {6}


def test_devices_may_have_up_to_eight_stages_each() -> None:
    alone = {k for r, k, _ in shapes(64, 80, 1) if r == 1}
    assert alone >= {80 // number for number in range(2, 9)}


@pytest.mark.parametrize("num_devices", [1, 2, 4, 6, 17, 32])
def test_each_has_a_schedule(num_devices: int) -> None:
    found = list(candidates(num_devices, NUM_CELLS, BATCH_SIZE))
    assert len(found) == len(set(found))
    for each in found:
        schedule = schedule_of(each)
        assert schedule.num_stages == each.num_stages <= NUM_CELLS
        assert each.num_replicas * schedule.num_devices <= num_devices
        assert schedule.num_micro_batches * each.num_replicas == each.num_micro_batches
        assert BATCH_SIZE % each.num_micro_batches == 0


def test_one_of_each_kind_is_among_them() -> None:
    found = list(candidates(4, NUM_CELLS, BATCH_SIZE))
    for candidate in (
        Candidate(1, 4, 1, 8, "gpipe", "except_last"),
        Candidate(2, 2, 1, 4, "1f1b", "always"),
        Candidate(1, 3, 1, 2, "zero_bubble", "never"),
        Candidate(2, 2, 2, 8, "interleaved", "never"),
    ):
        assert candidate in found


@pytest.mark.parametrize("num_devices", [1, 4, 6])
def test_what_offloads_copies_something(num_devices: int) -> None:
    plain = list(candidates(num_devices, NUM_CELLS, BATCH_SIZE))
    both = list(candidates(num_devices, NUM_CELLS, BATCH_SIZE, with_offload=True))
    assert [each for each in both if each.offload == "never"] == plain
    for each in plain:
        if each.schedule in ("gpipe", "1f1b") and each.recompute == "never":
            away = dataclasses.replace(each, offload="always")
            copies = Kind.OFFLOAD in schedule_of(away).kinds
            assert (away in both) == copies


def test_replicas_can_be_excluded() -> None:
    both = list(candidates(4, NUM_CELLS, BATCH_SIZE))
    alone = list(candidates(4, NUM_CELLS, BATCH_SIZE, with_replicas=False))
    assert alone == [each for each in both if each.num_replicas == 1]
    assert len(alone) < len(both)


def test_the_number_of_micro_batches_is_limited() -> None:
    def tried(num_devices: int, *fixed: int) -> int:
        found = candidates(num_devices, 2, 2**14, True, fixed)
        return max(each.num_micro_batches for each in found)

    assert tried(2) == 2**10
    assert tried(2, 2**13) == 2**13
    assert tried(128) == 2**11


@pytest.mark.parametrize("fixed", [[], [3], [15], [5, 7]])
@pytest.mark.parametrize("num_devices", [17, 36, 64])
def test_fixed_numbers_are_tried(num_devices: int, fixed: list[int]) -> None:
    found = list(candidates(num_devices, 90, 420, True, fixed))
    replicas = {each.num_replicas for each in found}
    assert set(fixed) <= replicas
    assert set(fixed) <= {each.num_devices for each in found}
    for number in replicas:  # All devices are used, however many replicas there are.
        assert num_devices // number in {
            each.num_devices for each in found if each.num_replicas == number
        }
