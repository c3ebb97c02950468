"""No step takes less than the lower bound, which is exact on one device."""

from __future__ import annotations

import dataclasses

import pytest

from lingvo_pipe.pipeline.splitting.cell_costs import CellSeconds
from lingvo_pipe.planner.resources.candidate import Candidate, candidates
from lingvo_pipe.planner.search.candidate_evaluation import Evaluation, evaluate
from lingvo_pipe.planner.search.fastest_candidates import step_time_lower_bound
from tests.planner.made_up_model import NUM_CELLS, made_up_device, made_up_models

QUICK = dataclasses.replace(
    made_up_device(10**6), operation_seconds=0.0, link_seconds=0.0, link_bandwidth=1e30
)


@pytest.mark.parametrize(
    ("num_devices", "overhead", "skew"),
    [(4, 0.0, 1.0), (4, 1e-3, 1.0), (6, 0.0, 1.0), (6, 1e-3, 1.0), (6, 0.0, 9.0)],
)
def test_no_step_takes_less_than_the_bound(
    num_devices: int, overhead: float, skew: float
) -> None:
    """Also if the forward passes of every second cell take `skew` times as long."""
    device = dataclasses.replace(QUICK, operation_seconds=overhead)
    models = made_up_models(made_up_device(10**6))
    for candidate in candidates(num_devices, NUM_CELLS, 12, with_offload=True):
        model, cells = models(12 // candidate.num_micro_batches)
        cells = [
            CellSeconds(cell.forward * (skew if i % 2 else 1.0), cell.backward)
            for i, cell in enumerate(cells)
        ]
        devices = [device] * candidate.num_devices
        step = evaluate(candidate, model, cells, devices)
        assert isinstance(step, Evaluation)
        bound = step_time_lower_bound(candidate, cells, devices, model.left_out)
        assert bound <= step.timeline.step_seconds * (1 + 1e-9)  # Sums are rounded.


@pytest.mark.parametrize("num_micro_batches", [1, 3, 32])
def test_on_one_device_the_bound_is_exact(num_micro_batches: int) -> None:
    cells = [CellSeconds(1.0, 2.0)] * 5
    candidate = Candidate(1, 1, 1, num_micro_batches, "1f1b", "never")
    bound = step_time_lower_bound(candidate, cells, [QUICK])
    assert bound == pytest.approx(15 * num_micro_batches)
    slow = dataclasses.replace(QUICK, operation_seconds=0.5)
    with_overhead = step_time_lower_bound(candidate, cells, [slow])
    assert with_overhead == pytest.approx(16 * num_micro_batches)


def test_the_bound_knows_that_far_too_many_devices_idle() -> None:
    """A micro-batch has to pass all cells, on however many devices."""
    cells = [CellSeconds(1.0, 2.0)] * 100
    for num_devices in (10, 100):
        candidate = Candidate(1, num_devices, 1, 1, "1f1b", "never")
        bound = step_time_lower_bound(candidate, cells, [QUICK] * num_devices)
        assert bound == pytest.approx(300)
