"""The memory that devices need, against trying every cut."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random

import numpy as np
import pytest

from lingvo_pipe.pipeline.execution.pipeline_spec import owners_round_robin
from lingvo_pipe.pipeline.memory.stage_memory import OperationBytes
from lingvo_pipe.pipeline.schedules.by_name import make_schedule
from lingvo_pipe.pipeline.schedules.schedule import Kind, Op, Schedule
from lingvo_pipe.pipeline.simulation.costs import Costs, StageCosts
from lingvo_pipe.pipeline.simulation.simulate import simulate
from lingvo_pipe.pipeline.simulation.timeline import TimedOp, Timeline
from lingvo_pipe.planner.costs import device_needs
from lingvo_pipe.planner.costs.device_needs import (
    DeviceNeeds,
    OversizedCandidate,
    OwnerShares,
    joint_peak,
    min_bytes_by_cell,
)
from lingvo_pipe.planner.costs.model_costs import ModelCosts
from lingvo_pipe.planner.resources.candidate import Candidate
from tests.pipeline.boundaries import all_boundaries
from tests.planner.made_up_model import NUM_CELLS, every_needs, schedule_of

CELL_BYTES = [random.Random(1).randrange(100) for _ in range(9)]


@pytest.mark.parametrize("num_replicas", [1, 2, 3, 4, 12])
def test_replicas_own_whole_cells_in_turn(num_replicas: int) -> None:
    shares = OwnerShares(CELL_BYTES, num_replicas)
    names = [str(r) for r in range(num_replicas)]
    replicas = [["-", name] for name in names]
    for start, end in itertools.combinations(range(len(CELL_BYTES) + 1), 2):
        # A stage in front, so that the second one lies between `start` and `end`.
        owners = owners_round_robin([start, end], replicas)[start:]
        expected = dict.fromkeys(names, 0)
        for num_bytes, owner in zip(CELL_BYTES[start:end], owners, strict=True):
            expected[owner] += num_bytes
        assert shares.by_replica(start, end) == list(expected.values())
        assert shares.largest(start, end) == max(expected.values())


@pytest.mark.parametrize("num_replicas", [1, 2, 3, 4])
def test_the_lower_bound_of_shares_holds_and_falls_with_fewer_cells(
    num_replicas: int,
) -> None:
    shares, below = OwnerShares(CELL_BYTES, num_replicas), 0
    for start, end in itertools.combinations(range(len(CELL_BYTES) + 1), 2):
        bound = shares.lower_bound(start, end)
        assert sum(CELL_BYTES[start:end]) / num_replicas <= bound
        assert bound <= shares.largest(start, end)
        below += bound < shares.largest(start, end)
        if start + 1 < end:
            assert shares.lower_bound(start + 1, end) <= bound
            assert shares.lower_bound(start, end - 1) <= bound
    assert (below > 0) == (num_replicas > 1)


def test_a_device_needs_what_its_stage_does() -> None:
    """With several stages it needs no more than if all were like the largest."""
    for candidate, _, needs in every_needs():
        for boundaries in all_boundaries(NUM_CELLS, candidate.num_stages):
            most = max(needs.by_device(boundaries))
            if candidate.stages_per_device == 1:
                assert most == needs.upper_bound(boundaries)
            else:
                assert most <= needs.upper_bound(boundaries)


def slots_by_owner(
    candidate: Candidate, model: ModelCosts, boundaries: list[int]
) -> dict[str, int]:
    """Returns slot bytes by device, as the pipeline places weights."""
    device_of_stage = schedule_of(candidate).device_of_stage()
    replicas = [
        [f"{device_of_stage[k]} of {r}" for k in range(candidate.num_stages)]
        for r in range(candidate.num_replicas)
    ]
    found = dict.fromkeys(itertools.chain(*replicas), 0)
    owners = owners_round_robin(boundaries, replicas)
    for slots, owner in zip(model.slot_bytes, owners, strict=True):
        found[owner] += slots
    return found


def test_replicas_share_slots_by_whole_cells() -> None:
    """So one of them may have more than its share, if a stage is one cell."""
    uneven = 0
    for candidate, model, needs in every_needs():
        without = dataclasses.replace(model, slot_bytes=[0] * NUM_CELLS)
        bare = DeviceNeeds(candidate, without, schedule_of(candidate))
        for boundaries in all_boundaries(NUM_CELLS, candidate.num_stages):
            slots = slots_by_owner(candidate, model, boundaries)
            expected = [
                own + max(slots[f"{k} of {r}"] for r in range(candidate.num_replicas))
                for k, own in enumerate(bare.by_device(boundaries))
            ]
            assert needs.by_device(boundaries) == expected
            uneven += len(set(slots.values())) > 1 and candidate.num_replicas > 1
    assert uneven


def test_slots_are_in_one_memory() -> None:
    for candidate, model, needs in every_needs():
        nothing = [0] * NUM_CELLS
        costs = dataclasses.replace(
            model, slot_bytes=nothing, host_slot_bytes=model.slot_bytes
        )
        assert costs.without_host == model
        away = DeviceNeeds(candidate, costs, needs.schedule)
        bare = dataclasses.replace(model, slot_bytes=nothing)
        without = DeviceNeeds(candidate, bare, needs.schedule)
        for boundaries in all_boundaries(NUM_CELLS, candidate.num_stages):
            on_devices = without.by_device(boundaries)
            assert away.by_device(boundaries) == on_devices
            pairs = zip(
                away.on_hosts(boundaries), without.on_hosts(boundaries), strict=True
            )
            moved = [with_slots - copies for with_slots, copies in pairs]
            pairs = zip(needs.by_device(boundaries), on_devices, strict=True)
            assert moved == [with_slots - others for with_slots, others in pairs]


def test_a_limit_that_some_cut_keeps_can_fit() -> None:
    could_not = 0
    for candidate, _, needs in every_needs():
        cuts = all_boundaries(NUM_CELLS, candidate.num_stages)
        lowest = min(map(needs.upper_bound, cuts))
        for limit in (lowest, lowest + 1, 2 * lowest):
            assert needs.can_fit(limit)
        could_not += not needs.can_fit(int(lowest * 0.9))
        assert needs.min_limit() <= lowest
    assert could_not  # Otherwise `can_fit` would be useless.


def test_the_min_limit_is_the_lowest_that_can_fit() -> None:
    for _, _, needs in every_needs():
        limit = needs.min_limit()
        assert needs.can_fit(limit)
        assert not needs.can_fit(limit - 1)


def test_no_stage_of_a_cell_alone_needs_less_than_its_minimum() -> None:
    reached = 0
    for candidate, model, needs in every_needs():
        for cell, minimum in enumerate(min_bytes_by_cell(model)):
            for stage in range(candidate.num_stages):
                needed = needs.for_stage(stage, cell, cell + 1)
                assert minimum <= needed
                reached += minimum == needed
    assert reached  # Otherwise the minimum would be too low.


def test_an_oversized_candidate_needs_what_the_best_cut_does() -> None:
    for candidate, _, needs in every_needs():
        cuts = list(all_boundaries(NUM_CELLS, candidate.num_stages))
        lowest = min(max(needs.by_device(boundaries)) for boundaries in cuts)
        alike = min(map(needs.upper_bound, cuts))
        for limit in (alike - 1, alike // 2):
            needed = OversizedCandidate(needs, limit).needed_bytes
            assert limit < needed <= alike
            assert needed >= lowest
            if candidate.stages_per_device == 1:
                assert needed == lowest


def test_with_many_cells_the_need_is_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = [
        (oversized, dataclasses.replace(oversized).needed_bytes)
        for candidate, _, needs in every_needs()
        if candidate.stages_per_device == 1
        for oversized in [OversizedCandidate(needs, 1)]
    ]
    assert not any(each.is_bound for each, _ in exact)
    monkeypatch.setattr(device_needs, "_MAX_CELLS", NUM_CELLS - 1)
    for each, needed in exact:
        assert each.is_bound
        assert 1 < each.needed_bytes <= needed


def test_no_schedule_is_made_where_weights_alone_are_too_large() -> None:
    """Most candidates of a model of a thousand layers are such ones."""
    for candidate, model, needs in every_needs():
        share = needs.weights_share()
        stages = candidate.num_stages
        boundaries = [NUM_CELLS * (i + 1) // stages for i in range(stages)]
        assert share <= max(needs.by_device(boundaries))
        own = DeviceNeeds(candidate, model)
        assert not own.can_fit(math.ceil(share) - 1)
        assert "schedule" not in vars(own)
        assert OversizedCandidate(own, int(share) - 1).order == (True, share)
        assert own.schedule == needs.schedule


def timeline_of(schedule: Schedule) -> Timeline:
    stage = StageCosts(
        forward=1.0,
        backward=2.5,
        input_gradient=1.0,
        weight_gradient=1.5,
        send_forward=0.25,
        send_backward=0.25,
    )
    return simulate(schedule, Costs((stage,) * schedule.num_stages, overhead=0.01))


def at(
    time: float, devices: list[list[OperationBytes]], timeline: Timeline
) -> list[int]:
    """Returns each device's bytes at a time within an operation, or between two."""
    found = []
    for own, column in zip(devices, timeline.columns, strict=True):
        number = own[0].after
        for used, timed in zip(own[1:], column, strict=True):
            if timed.start <= time:
                number = used.during if time < timed.end else used.after
        found.append(number)
    return found


@pytest.mark.parametrize("schedule_name", ["gpipe", "1f1b", "zero_bubble"])
@pytest.mark.parametrize("seed", range(3))
def test_a_joint_peak_is_the_most_at_any_time(schedule_name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    schedule = make_schedule(schedule_name, 3, 4, 1, "never")
    timeline = timeline_of(schedule)
    devices = [
        [OperationBytes(*sorted(pair, reverse=True)) for pair in own]
        for own in rng.integers(1, 1000, [3, len(timeline.columns[0]) + 1, 2]).tolist()
    ]
    devices = [[own[0]._replace(during=own[0].after), *own[1:]] for own in devices]
    times = sorted(t for _, x in timeline.ops() for t in (x.start, x.end))
    middles = [(a + b) / 2 for a, b in itertools.pairwise(times) if b > a]
    found = joint_peak(devices, timeline)
    assert found == max(sum(at(t, devices, timeline)) for t in [-1.0, *middles])
    assert found <= sum(max(x.during for x in own) for own in devices)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_memory_is_freed_before_another_device_takes_it(order: tuple[int, int]) -> None:
    columns = [(TimedOp(Op(Kind.FORWARD, 0, i), i, i, i + 1),) for i in order]
    devices = [[OperationBytes(0, 0), OperationBytes(5, 0)]] * 2
    assert joint_peak(devices, Timeline(tuple(columns))) == 5
