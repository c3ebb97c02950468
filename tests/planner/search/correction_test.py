"""Corrected predictions agree with the real steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import pytest

from lingvo_pipe.pipeline.splitting.cell_costs import CellSeconds
from lingvo_pipe.planner.costs.device_needs import DeviceNeeds
from lingvo_pipe.planner.resources.candidate import Candidate
from lingvo_pipe.planner.resources.device_model import Contention, DeviceModel
from lingvo_pipe.planner.search.candidate_evaluation import Evaluation, evaluate
from lingvo_pipe.planner.search.correction import (
    Correction,
    InStep,
    allocator_loss,
    correction,
    in_step,
)
from tests.planner.made_up_model import (
    NUM_CELLS,
    NUM_DEVICES,
    made_up_device,
    made_up_model,
)

MODEL = made_up_model(4)
ALONE = [CellSeconds(0.01 + i % 3 / 100, 0.03 - i % 2 / 100) for i in range(NUM_CELLS)]
DEVICE = dataclasses.replace(
    made_up_device(10**9), link_seconds=0.0, link_bandwidth=1e12, operation_seconds=0.0
)


def step_of(
    number: int, seconds: Sequence[CellSeconds], device: DeviceModel
) -> Evaluation:
    """Predicts a step on this many devices."""
    candidate = Candidate(1, number, 1, 2 * number, "1f1b", "never")
    found = evaluate(candidate, MODEL, seconds, [device] * number)
    assert isinstance(found, Evaluation)
    return found


def found_in(step: Evaluation, rest: float) -> InStep:
    """Returns what a step takes, as if it were a real one."""
    update = step.step_seconds - step.timeline.step_seconds
    walls = [step.step_seconds + rest]
    return in_step(walls, [step.timeline], update)


@pytest.mark.parametrize("number", range(2, NUM_DEVICES + 1))
@pytest.mark.parametrize(("forward", "backward"), [(1.0, 1.0), (0.8, 1.3)])
@pytest.mark.parametrize("slowdown", [1.0, 1.6])
def test_what_makes_real_steps_slower_is_found(
    number: int, forward: float, backward: float, slowdown: float
) -> None:
    """Real steps are predictions with other times of cells, and with contention."""
    real = Correction(forward, backward, Contention(number, slowdown, 0.25, 0.75))
    seconds = real.corrected(ALONE)
    without_rest = Contention(number, slowdown)
    device = dataclasses.replace(DEVICE, contention=without_rest)
    one, all_ = (step_of(n, seconds, device) for n in (1, number))
    found = correction(ALONE, found_in(one, 0.25), found_in(all_, 0.75), number)
    assert found is not None
    assert found.forward == pytest.approx(forward)
    assert found.backward == pytest.approx(backward)
    assert found.contention == pytest.approx(real.contention, rel=1e-3)
    device = dataclasses.replace(DEVICE, contention=found.contention)
    for each, count, rest in ((one, 1, 0.25), (all_, number, 0.75)):
        again = step_of(count, found.corrected(ALONE), device)
        assert again.step_seconds == pytest.approx(each.step_seconds + rest, rel=1e-3)


FORWARD, BACKWARD = (sum(own) for own in zip(*ALONE, strict=True))


def test_with_one_step_all_is_as_in_it() -> None:
    step = InStep(0.9 * FORWARD, 1.2 * BACKWARD, 0.5, [0.2, 0.8], 0.1)
    for on_one, on_all in ((step, None), (None, step)):
        found = correction(ALONE, on_one, on_all, 2)
        assert found is not None
        assert found[:2] == pytest.approx((0.9, 1.2))
        assert found[2:] == (Contention(2, 1.0, 0.5, 0.5), 0.1)


def test_without_steps_nothing_is_known() -> None:
    assert correction(ALONE, None, None, 2) is None
    assert Correction().corrected(ALONE) == ALONE


def test_contention_makes_no_device_faster() -> None:
    on_one, on_all = (InStep(x, x, 0.0, [0.0, 1.0]) for x in (1.0, 0.5))
    found = correction(ALONE, on_one, on_all, 2)
    assert found is not None
    assert found.contention.slowdown == 1.0


def test_contention_is_no_slower_than_taking_turns() -> None:
    """Devices that are hardly busy at once cannot explain a much slower step."""
    on_one, on_all = (InStep(x, x, 0.0, [0.9, 0.1]) for x in (1.0, 1.3))
    found = correction(ALONE, on_one, on_all, 2)
    assert found is not None
    assert found.contention.slowdown == pytest.approx(2, abs=1e-3)


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("loss", [0.0, 0.07, 0.2, 1.0])
def test_what_an_allocator_loses_is_found(number: int, loss: float) -> None:
    needs = needs_of(number)
    measured = needs(loss)
    found = allocator_loss(measured, needs)
    assert found == pytest.approx(loss, abs=0.01)
    assert allocator_loss(2 * needs(1.0), needs) == 1.0
    assert allocator_loss(0, needs) == 0.0


def needs_of(number: int) -> Callable[[float], int]:
    """Returns a function from the loss to the bytes of all devices."""
    candidate = Candidate(1, number, 1, 2 * number, "1f1b", "never")
    boundaries = step_of(number, ALONE, DEVICE).boundaries

    def needs(loss: float) -> int:
        model = dataclasses.replace(MODEL, allocator_loss=loss)
        return sum(DeviceNeeds(candidate, model).by_device(boundaries))

    return needs
