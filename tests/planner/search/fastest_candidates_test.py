"""The search finds what evaluating every candidate finds, by a valid lower bound."""

from __future__ import annotations

import dataclasses

import pytest

from lingvo_pipe.pipeline.splitting.cell_costs import CellSeconds
from lingvo_pipe.planner.costs.device_needs import OversizedCandidate
from lingvo_pipe.planner.resources.candidate import Candidate, candidates
from lingvo_pipe.planner.resources.device_model import DeviceModel
from lingvo_pipe.planner.resources.resources import Resources
from lingvo_pipe.planner.search.candidate_evaluation import Evaluation, evaluate
from lingvo_pipe.planner.search.fastest_candidates import search, step_time_lower_bound
from tests.planner.made_up_model import (
    BATCH_SIZE,
    NUM_CELLS,
    NUM_DEVICES,
    every_candidate,
    made_up_device,
    made_up_model,
    made_up_models,
)

EVERYTHING = made_up_model(BATCH_SIZE).memory.weights(0, NUM_CELLS) * 4
SHARES = [0.3, 0.6, 0.8, 1.2, 9.0]
QUICK = dataclasses.replace(
    made_up_device(10**6), operation_seconds=0.0, link_seconds=0.0, link_bandwidth=1e30
)


def device_of(share: float) -> DeviceModel:
    return made_up_device(int(EVERYTHING * share))


def every_result(device: DeviceModel) -> list[Evaluation | OversizedCandidate]:
    models = made_up_models(device)
    return [
        evaluate(
            each,
            *models(BATCH_SIZE // each.num_micro_batches),
            [device] * each.num_devices,
        )
        for each in every_candidate()
    ]


@pytest.mark.parametrize("share", SHARES)
def test_it_finds_the_fastest_that_fit(share: float) -> None:
    device = device_of(share)
    models, choices = made_up_models(device), every_candidate()
    every = every_result(device)
    fitting = [each for each in every if isinstance(each, Evaluation)]
    for each in fitting:
        assert max(each.bytes_by_device) <= device.usable_bytes
        assert [0, *each.boundaries] == sorted({0, *each.boundaries})
        assert each.boundaries[-1] == NUM_CELLS
        assert len(each.boundaries) == each.candidate.num_stages
        costs, cells = models(BATCH_SIZE // each.candidate.num_micro_batches)
        given = each.candidate, cells, device.operation_seconds, costs.left_out
        bound = step_time_lower_bound(*given)
        assert bound <= each.step_seconds * (1 + 1e-9)  # Sums are rounded.
    others = [each for each in every if isinstance(each, OversizedCandidate)]
    assert all(each.needed_bytes > device.usable_bytes for each in others)

    resources = Resources((device,) * NUM_DEVICES, BATCH_SIZE)
    found = search(choices, models, resources)
    expected: dict[tuple[str, str, str], float] = {}
    for each in fitting:
        variant = each.candidate.variant
        best = expected.get(variant, each.step_seconds)
        expected[variant] = min(each.step_seconds, best)
    assert {x.candidate.variant: x.step_seconds for x in found.fastest} == expected
    seconds = [each.step_seconds for each in found.fastest]
    assert seconds == sorted(seconds)
    oversized = {each.candidate for each in others}
    assert {each.candidate for each in found.oversized} <= oversized
    evaluated = len(found.fastest) + found.num_slower + len(found.oversized)
    assert evaluated == len(choices)


def test_limits_matter() -> None:
    """Some of the limits above allow all candidates, and some only a few."""
    numbers = [
        sum(isinstance(each, Evaluation) for each in every_result(device_of(share)))
        for share in SHARES
    ]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == len(every_candidate())


@pytest.mark.parametrize("overhead", [0.0, 1e-3])
@pytest.mark.parametrize("num_devices", [4, 6])
def test_no_step_takes_less_than_the_bound(num_devices: int, overhead: float) -> None:
    device = dataclasses.replace(QUICK, operation_seconds=overhead)
    models = made_up_models(made_up_device(10**6))
    for candidate in candidates(num_devices, NUM_CELLS, 12, with_offload=True):
        model, cells = models(12 // candidate.num_micro_batches)
        devices = [device] * candidate.num_devices
        step = evaluate(candidate, model, cells, devices)
        assert isinstance(step, Evaluation)
        bound = step_time_lower_bound(candidate, cells, overhead, model.left_out)
        assert bound <= step.timeline.step_seconds * (1 + 1e-9)  # Sums are rounded.


@pytest.mark.parametrize("num_micro_batches", [1, 3, 32])
def test_on_one_device_the_bound_is_exact(num_micro_batches: int) -> None:
    cells = [CellSeconds(1.0, 2.0)] * 5
    candidate = Candidate(1, 1, 1, num_micro_batches, "1f1b", "never")
    bound = step_time_lower_bound(candidate, cells)
    assert bound == pytest.approx(15 * num_micro_batches)
    with_overhead = step_time_lower_bound(candidate, cells, overhead=0.5)
    assert with_overhead == pytest.approx(16 * num_micro_batches)


def test_the_bound_knows_that_far_too_many_devices_idle() -> None:
    """A micro-batch has to pass all cells, on however many devices."""
    cells = [CellSeconds(1.0, 2.0)] * 100
    for num_devices in (10, 100):
        candidate = Candidate(1, num_devices, 1, 1, "1f1b", "never")
        assert step_time_lower_bound(candidate, cells) == pytest.approx(300)
