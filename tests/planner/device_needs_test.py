"""What devices need, and which stages keep within it, against trying every cut."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from lingvo_pipe.planner.device_needs import DeviceNeeds
from lingvo_pipe.planner.fitting_ends import fitting_ends
from tests.planner.made_up_model import NUM_CELLS, every_needs


def all_ends(num_stages: int) -> Iterator[list[int]]:
    for middle in itertools.combinations(range(1, NUM_CELLS), num_stages - 1):
        yield [*middle, NUM_CELLS]


def largest(needs: DeviceNeeds, ends: list[int]) -> int:
    """The most that a device would need, were all its stages like one of these."""
    stages = enumerate(itertools.pairwise([0, *ends]))
    return max(needs.of_stage(stage, *pair) for stage, pair in stages)


def test_a_device_needs_what_its_stage_does() -> None:
    """And of several stages no more than if all were like the largest."""
    for candidate, _, needs in every_needs():
        for ends in all_ends(candidate.num_stages):
            most = max(needs.of_devices(ends))
            if candidate.stages_per_device == 1:
                assert most == largest(needs, ends)
            else:
                assert most <= largest(needs, ends)


def test_replicas_share_slots() -> None:
    shared = 0
    for candidate, model, needs in every_needs():
        assert needs.slots(1, 4) == sum(model.slot_bytes[1:4]) // candidate.num_replicas
        shared += candidate.num_replicas > 1
    assert shared


def test_a_limit_with_which_some_cut_does_can_fit() -> None:
    could_not = 0
    for candidate, _, needs in every_needs():
        least = min(largest(needs, ends) for ends in all_ends(candidate.num_stages))
        for limit in (least, least + 1, 2 * least):
            assert needs.can_fit(limit)
        could_not += not needs.can_fit(int(least * 0.9))
        assert needs.least() <= least
    assert could_not  # Else it would tell nothing.


def test_the_least_limit_is_the_first_that_can_fit() -> None:
    for _, _, needs in every_needs():
        least = needs.least()
        assert needs.can_fit(least)
        assert not needs.can_fit(least - 1)


def test_stages_fit_where_some_cut_does() -> None:
    """And are as even as those that fit can be."""
    for candidate, model, needs in every_needs():
        cuts = list(all_ends(candidate.num_stages))
        by_size = sorted(largest(needs, ends) for ends in cuts)
        for limit in (by_size[0] - 1, by_size[0], by_size[len(cuts) // 2]):
            found = fitting_ends(needs, limit, model.flops, model.crossing)
            fitting = [ends for ends in cuts if largest(needs, ends) <= limit]
            if found is None:
                assert not fitting
                continue
            assert max(needs.of_devices(found)) <= limit
            assert candidate.stages_per_device > 1 or fitting
            for ends in fitting:
                assert dearest(model.flops, found) <= dearest(model.flops, ends)


def dearest(costs: Sequence[int], ends: Sequence[int]) -> int:
    return max(sum(costs[a:b]) for a, b in itertools.pairwise([0, *ends]))
