"""A step takes no less than the bound, and not much more where nothing is lost."""

from __future__ import annotations

import dataclasses

import pytest

from lingvo_pipe.pipeline.splitting.cell_seconds import CellSeconds
from lingvo_pipe.planner.candidate import Candidate, candidates
from lingvo_pipe.planner.evaluation import Evaluated, evaluate
from lingvo_pipe.planner.least_seconds import least_seconds
from tests.planner.made_up_model import NUM_CELLS, made_up_device, made_up_models

DEVICE = made_up_device(10**6)
QUICK = dataclasses.replace(
    DEVICE, operation_seconds=0.0, link_seconds=0.0, link_bandwidth=1e30
)


@pytest.mark.parametrize("overhead", [0.0, 1e-3])
@pytest.mark.parametrize("num_devices", [4, 6])
def test_no_step_takes_less(num_devices: int, overhead: float) -> None:
    device = dataclasses.replace(QUICK, operation_seconds=overhead)
    models = made_up_models(DEVICE)
    for candidate in candidates(num_devices, NUM_CELLS, 12):
        model, cells = models(12 // candidate.num_micro_batches)
        step = evaluate(candidate, model, cells, device)
        assert isinstance(step, Evaluated)
        least = least_seconds(candidate, cells, overhead)
        assert least <= step.timeline.step_seconds * (1 + 1e-9)  # Sums are rounded.


@pytest.mark.parametrize("num_micro_batches", [1, 3, 32])
def test_one_device_takes_no_more_for_its_cells(num_micro_batches: int) -> None:
    cells = [CellSeconds(1.0, 2.0)] * 5
    way = Candidate(1, 1, 1, num_micro_batches, "1f1b", "never")
    assert least_seconds(way, cells) == pytest.approx(15 * num_micro_batches)
    with_overhead = least_seconds(way, cells, overhead=0.5)
    assert with_overhead == pytest.approx(16 * num_micro_batches)


def test_devices_by_far_too_many_are_known_to_idle() -> None:
    """A micro-batch has to pass all cells, on however many devices."""
    cells = [CellSeconds(1.0, 2.0)] * 100
    for num_devices in (10, 100):
        way = Candidate(1, num_devices, 1, 1, "1f1b", "never")
        assert least_seconds(way, cells) == pytest.approx(300)
