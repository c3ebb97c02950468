"""Plans for several hosts: the best placements, and links that cost what they take."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest

from lingvo_pipe.pipeline.simulation.simulate import simulate
from lingvo_pipe.planner.costs.device_needs import DeviceNeeds
from lingvo_pipe.planner.costs.flops_time_model import update_seconds
from lingvo_pipe.planner.resources.candidate import Candidate
from lingvo_pipe.planner.resources.device_model import DeviceModel
from lingvo_pipe.planner.resources.hosts import Hosts, Link, Placement, stage_links
from lingvo_pipe.planner.resources.known_devices import DEVICES
from lingvo_pipe.planner.resources.resources import Constraints, Resources
from lingvo_pipe.planner.search.candidate_evaluation import (
    Evaluation,
    evaluate_boundaries,
    step_costs,
)
from lingvo_pipe.planner.search.fitting_plan import plan
from lingvo_pipe.planner.search.plan_report import run_flags
from tests.planner.made_up_model import (
    BATCH_SIZE,
    NUM_DEVICES,
    evaluated,
    every_candidate,
    made_up_device,
    made_up_model,
    made_up_models,
    schedule_of,
)
from tests.support.cases import exhaustive

DEVICE = made_up_device(10**6)
SLOW = Link(2e4, 1e-3)


def on_hosts(per_host: int, link: Link, bandwidth: float = math.inf) -> DeviceModel:
    return dataclasses.replace(DEVICE, hosts=Hosts(per_host, link, bandwidth))


def planned(device: DeviceModel) -> Evaluation:
    resources = Resources((device,) * NUM_DEVICES, BATCH_SIZE)
    return plan(made_up_models(DEVICE), resources, Constraints()).fastest[0]


@pytest.mark.parametrize("per_host", [2, *map(exhaustive, [1, 3, 4])])
def test_equal_links_change_nothing(per_host: int) -> None:
    equal = on_hosts(per_host, DEVICE.link)
    for candidate in every_candidate():
        one, several = (evaluated(candidate, x) for x in (DEVICE, equal))
        assert several.step_seconds == pytest.approx(one.step_seconds, rel=1e-12)
        assert several.timeline == one.timeline
        assert several.boundaries == one.boundaries
    assert planned(equal).candidate == planned(DEVICE).candidate


@pytest.mark.exhaustive
@pytest.mark.parametrize("per_host", [1, 2, 3])
def test_a_slower_link_never_makes_a_step_faster(per_host: int) -> None:
    links = [DEVICE.link, DEVICE.link._replace(latency=1e-3), SLOW]
    slower = [on_hosts(per_host, link) for link in links]
    slower += [on_hosts(per_host, SLOW, x) for x in (2e4, 1e4)]
    for candidate in every_candidate():
        seconds = [evaluated(candidate, device).step_seconds for device in slower]
        for a, b in itertools.pairwise(seconds):
            assert a <= b * (1 + 1e-12)
        if candidate.total_devices <= per_host:
            assert set(seconds) == {evaluated(candidate, DEVICE).step_seconds}
    best = [planned(device).step_seconds for device in slower]
    assert best == pytest.approx(sorted(best))


# Replicas, devices of each, and devices per host, on two hosts.
SIZES = [(2, 2, 2), (1, 4, 2), (4, 1, 2), (1, 3, 3), (3, 1, 3), (2, 3, 3), (3, 2, 3)]
SIZES += [(1, 3, 2), (2, 1, 2), (1, 2, 2), (2, 2, 4), (2, 3, 4)]
WAYS = [("1f1b", 1), ("gpipe", 1), ("interleaved", 2), ("zero_bubble_v", 2)]


def hosts_of(placement: Placement, hosts: Hosts) -> tuple[Any, ...]:
    """Returns the hosts of all places, each named by when it first occurs."""
    names: dict[int, int] = {}
    rows = [[hosts.host(x) for x in row] for row in placement]
    return tuple(tuple(names.setdefault(x, len(names)) for x in row) for row in rows)


# Interleaved schedules need several devices, and each stage one of six cells.
CASES = [
    (size, way)
    for size, way in itertools.product(SIZES, WAYS)
    if size[1] * way[1] <= 6 and (size[1] > 1 or way[1] == 1)
]


@pytest.mark.parametrize(("size", "way"), CASES)
@pytest.mark.parametrize("weight", [1, 100])
def test_the_placement_is_the_best_of_all_where_groups_fill_hosts(
    size: tuple[int, int, int], way: tuple[str, int], weight: int
) -> None:
    """Activations are most of what is sent, or weights between replicas."""
    (num_replicas, num_devices, per_host), (schedule_name, per_device) = size, way
    rows = num_replicas * num_devices
    candidate = Candidate(
        num_replicas, num_devices, per_device, rows, schedule_name, "never"
    )
    model = made_up_model(1)
    calls = [
        x._replace(weights=x.weights * weight, accumulators=x.accumulators * weight)
        for x in model.calls
    ]
    model = dataclasses.replace(model, calls=calls)
    schedule, device = schedule_of(candidate), on_hosts(per_host, SLOW, 3e4)
    assert device.hosts is not None
    hosts = dataclasses.replace(device.hosts, number=2)
    device = dataclasses.replace(device, hosts=hosts)
    devices = [device] * num_devices
    _, seconds = made_up_models(DEVICE)(1)
    stages = candidate.num_stages
    boundaries = [6 * (i + 1) // stages for i in range(stages)]
    device_of_stage = [x for _, x in sorted(schedule.device_of_stage().items())]

    @functools.cache
    def simulated(links: Sequence[Link]) -> float:
        costs = step_costs(
            seconds, model.boundary_bytes, boundaries, [device] * stages, links
        )
        return simulate(schedule, costs).step_seconds

    def step_seconds(placement: Placement) -> float:
        links = stage_links(placement, device_of_stage, device.link, hosts)
        sizes = num_replicas, devices, placement
        after = update_seconds(model, schedule, boundaries, *sizes)
        return max(map(simulated, links)) + after

    known = {}
    for order in itertools.permutations(range(2 * per_host), rows):
        starts = range(0, rows, num_devices)
        placement = tuple(order[i : i + num_devices] for i in starts)
        key = hosts_of(placement, hosts)
        if key not in known:
            known[key] = step_seconds(placement)
    found = evaluate_boundaries(
        DeviceNeeds(candidate, model, schedule), boundaries, seconds, devices
    )
    assert found.step_seconds == pytest.approx(step_seconds(found.placement))
    best = min(known.values())
    is_even = all(per_host % n * (n % per_host) == 0 for n in size[:2])
    assert found.step_seconds >= best * (1 - 1e-9)
    assert found.step_seconds == pytest.approx(best) or not is_even


def test_the_update_is_counted_by_the_links_that_it_takes() -> None:
    """Here by hand, for cells of equal weights and two replicas of two stages."""
    model = made_up_model(1)
    first, last = model.calls[0], model.calls[-1]
    model = dataclasses.replace(
        model, calls=[first] * 6 + [last], slot_bytes=[0] * model.num_cells
    )
    candidate = Candidate(2, 2, 1, 2, "1f1b", "never")
    schedule, given = schedule_of(candidate), ([3, 6], 2)
    # A device owns at most two cells of its stage.
    touched = 2 * (2 * first.weights + first.accumulators) / DEVICE.memory_bandwidth
    sent = 2 * (first.weights + first.accumulators)
    device = on_hosts(2, SLOW, 2.5e4)

    def seconds(*placement: tuple[int, ...]) -> float:
        return update_seconds(model, schedule, *given, [device] * 2, placement)

    assert seconds((0, 2), (1, 3)) == pytest.approx(
        touched + sent / DEVICE.link_bandwidth
    )
    # Each host's devices own three cells, which all leave it.
    assert seconds((0, 1), (2, 3)) == pytest.approx(
        max(touched + sent / SLOW.bandwidth, 2 * sent / 2.5e4)
    )


def test_devices_are_named_where_their_order_is_another() -> None:
    found = evaluated(Candidate(2, 2, 1, 4, "1f1b", "never"), on_hosts(2, SLOW))
    named = dataclasses.replace(found, placement=((0, 2), (1, 3)))
    hosts = Hosts(2, SLOW)
    flag, _ = run_flags(named, hosts=hosts)
    names = "worker:0/gpu:0,worker:1/gpu:0,worker:0/gpu:1,worker:1/gpu:1"
    assert flag == f"--devices={names}"
    in_order = dataclasses.replace(found, placement=((0, 1), (2, 3)))
    assert run_flags(in_order, hosts=hosts)[0] == "--devices=4"


@pytest.mark.parametrize("name", [x for x, device in DEVICES.items() if device.network])
def test_known_kinds_have_links_between_hosts(name: str) -> None:
    """TPUs have their own, by which a plan for several hosts is one for a host."""
    device = DEVICES[name].on_hosts(8)
    assert device.hosts is not None
    is_same = device.hosts.link == device.link and device.hosts.bandwidth == math.inf
    assert is_same == name.startswith("TPU")
    assert device.hosts.link.seconds(10**9) >= device.link.seconds(10**9)
    slow = DEVICES[name].on_hosts(8, 10).hosts
    assert slow is not None
    assert slow.link.bandwidth == slow.bandwidth == 1.25e9
