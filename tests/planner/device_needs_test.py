"""What devices need, and which stages keep within it, against trying every cut."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from lingvo_pipe.pipeline.homes import homes_in_turn
from lingvo_pipe.planner.candidate import Candidate
from lingvo_pipe.planner.device_needs import DeviceNeeds
from lingvo_pipe.planner.fitting_ends import fitting_ends
from lingvo_pipe.planner.model_costs import ModelCosts
from tests.planner.made_up_model import NUM_CELLS, every_needs, schedule_of


def all_ends(num_stages: int) -> Iterator[list[int]]:
    for middle in itertools.combinations(range(1, NUM_CELLS), num_stages - 1):
        yield [*middle, NUM_CELLS]


def test_a_device_needs_what_its_stage_does() -> None:
    """And of several stages no more than if all were like the largest."""
    for candidate, _, needs in every_needs():
        for ends in all_ends(candidate.num_stages):
            most = max(needs.of_devices(ends))
            if candidate.stages_per_device == 1:
                assert most == needs.largest(ends)
            else:
                assert most <= needs.largest(ends)


def slots_by_home(
    candidate: Candidate, model: ModelCosts, ends: list[int]
) -> dict[str, int]:
    """What the optimizer keeps on each device, as the pipeline places weights."""
    homes = schedule_of(candidate).device_of_stage()
    replicas = [
        [f"{homes[k]} of {r}" for k in range(candidate.num_stages)]
        for r in range(candidate.num_replicas)
    ]
    found = dict.fromkeys(itertools.chain(*replicas), 0)
    for slots, home in zip(
        model.slot_bytes, homes_in_turn(ends, replicas), strict=True
    ):
        found[home] += slots
    return found


def test_replicas_share_slots_by_whole_cells() -> None:
    """So one of them may have more than its share, as where a stage is one cell."""
    uneven = 0
    for candidate, model, needs in every_needs():
        without = dataclasses.replace(model, slot_bytes=[0] * NUM_CELLS)
        bare = DeviceNeeds(candidate, without, schedule_of(candidate))
        for ends in all_ends(candidate.num_stages):
            slots = slots_by_home(candidate, model, ends)
            want = [
                own + max(slots[f"{k} of {r}"] for r in range(candidate.num_replicas))
                for k, own in enumerate(bare.of_devices(ends))
            ]
            assert needs.of_devices(ends) == want
            uneven += len(set(slots.values())) > 1 and candidate.num_replicas > 1
    assert uneven


def test_longer_stages_need_no_less() -> None:
    for candidate, _, needs in every_needs():
        for stage, start in itertools.product(
            range(candidate.num_stages), range(NUM_CELLS)
        ):
            ends = range(start + 1, NUM_CELLS + 1)
            sizes = [needs.of_stage(stage, start, end) for end in ends]
            assert sizes == sorted(sizes)


def test_a_limit_with_which_some_cut_does_can_fit() -> None:
    could_not = 0
    for candidate, _, needs in every_needs():
        least = min(needs.largest(ends) for ends in all_ends(candidate.num_stages))
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
        by_size = sorted(needs.largest(ends) for ends in cuts)
        for limit in (by_size[0] - 1, by_size[0], by_size[len(cuts) // 2]):
            found = fitting_ends(needs, limit, model.flops, model.crossing)
            fitting = [ends for ends in cuts if needs.largest(ends) <= limit]
            if found is None:
                assert not fitting
                continue
            assert max(needs.of_devices(found)) <= limit
            assert candidate.stages_per_device > 1 or fitting
            for ends in fitting:
                assert dearest(model.flops, found) <= dearest(model.flops, ends)


def dearest(costs: Sequence[int], ends: Sequence[int]) -> int:
    return max(sum(costs[a:b]) for a, b in itertools.pairwise([0, *ends]))
