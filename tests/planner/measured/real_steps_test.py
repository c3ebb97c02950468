"""Real steps correct what cells take alone."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.pipeline.devices.stage_devices import stage_devices
from lingvo_pipe.pipeline.splitting.cell_costs import CellSeconds
from lingvo_pipe.planner.costs.traced_model import ModelTracer
from lingvo_pipe.planner.measured import real_steps
from lingvo_pipe.planner.measured.real_steps import (
    is_enough,
    measured_correction,
    real_step,
    synthetic_batch,
)
from lingvo_pipe.planner.resources.resources import Resources
from lingvo_pipe.planner.search.correction import Correction, InStep
from lingvo_pipe.training.profiling.memory_peaks import MemoryWatch
from lingvo_pipe.training.profiling.step_profile import MemoryPeak
from tests.planner.made_up_model import NUM_CELLS, made_up_device, made_up_model
from tests.registered_models.reduced_models import reduced_params

MODEL = made_up_model(4)
SECONDS = [CellSeconds(1.0, 2.0)] * NUM_CELLS
DEVICES = [f"cpu:{i}" for i in range(3)]
RICH = made_up_device(10**9)


class FakeStep:
    """A step that takes twice the cells' time on one device, thrice on several."""

    def __init__(self, number: int):
        self._number, factor = number, 2.0 if number == 1 else 3.0
        self._sums = [factor * sum(own) for own in zip(*SECONDS, strict=True)]
        self.seconds: list[float] = []

    def run_in_a_row(self) -> None:
        while not is_enough(self.seconds):
            self.seconds.append(1.0)

    def take(self, *unused: Any) -> InStep:
        assert is_enough(self.seconds)
        busy = [1.0] if self._number == 1 else [0.0, 1.0, *[0.0] * (self._number - 2)]
        forward, backward = self._sums
        return InStep(forward, backward, 1.0 + self._number, busy)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """Returns the devices of the steps that were made."""
    found: list[Sequence[str]] = []

    def make(tracer: Any, devices: Sequence[str], *unused: Any) -> FakeStep:
        found.append(devices)
        return FakeStep(len(devices))

    monkeypatch.setattr(real_steps, "RealStep", make)
    return found


def corrected(devices: Sequence[str], **options: bool) -> Correction:
    tracer: Any = None
    found = measured_correction(tracer, devices, MODEL, SECONDS, RICH, **options)
    assert found is not None
    return found


def test_a_step_on_one_device_and_one_on_all_are_timed(
    asked: list[Sequence[str]],
) -> None:
    """Only the one on all if there is no other way to use the devices."""
    found = corrected(DEVICES)
    assert asked == [DEVICES, DEVICES[:1]]
    # Half as much more time with one of two other devices busy: twice with both.
    assert found.forward == 2.0
    assert found.contention == pytest.approx((3, 2.0, 2.0, 4.0), rel=1e-3)
    found = corrected(DEVICES, uses_all=True)
    assert asked[2:] == [DEVICES]
    assert (found.forward, found.contention.slowdown) == (3.0, 1.0)
    assert corrected(DEVICES[:1], uses_all=True).forward == 2.0
    assert asked[3:] == [DEVICES[:1]]


def test_there_are_no_more_stages_than_cells(asked: list[Sequence[str]]) -> None:
    many = [f"cpu:{i}" for i in range(NUM_CELLS + 1)]
    assert corrected(many).forward == 2.0
    assert asked == [many[:1]]
    assert corrected(many, uses_all=True).forward == 2.0


@pytest.mark.parametrize(
    ("number", "steps"), [(1, [None, "never"]), (4, [None, "always", "never"])]
)
def test_a_step_that_does_not_fit_recomputes_or_is_left_out(
    number: int, steps: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one device 1F1B holds a single micro-batch, so recomputing saves nothing."""

    def make(tracer: Any, devices: Any, num_rows: int, planned: Any) -> Any:
        return planned.candidate.recompute

    monkeypatch.setattr(real_steps, "RealStep", make)
    found: list[Any] = []
    for memory in range(1000, 60_000, 500):
        devices = [f"cpu:{i}" for i in range(number)]
        given: Any = (None, devices, MODEL, SECONDS, made_up_device(memory))
        found.append(real_step(*given))
    assert list(dict.fromkeys(found)) == steps


@pytest.mark.parametrize(
    "error", [FloatingPointError(), tf.errors.InvalidArgumentError(None, None, "index")]
)
def test_a_step_that_takes_no_synthetic_batch_is_left_out(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(*unused: Any) -> None:
        raise error

    monkeypatch.setattr(real_steps, "RealStep", make)
    given: Any = (None, DEVICES[:1], MODEL, SECONDS, RICH)
    assert real_step(*given) is None


def test_steps_run_until_there_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    step = object.__new__(real_steps.RealStep)
    peaks = iter(range(100))
    step._watch = SimpleNamespace(  # type: ignore[assignment]
        peaks=lambda: [MemoryPeak([0], next(peaks))]
    )
    step.seconds, step._timelines, step._memories = [], [], []
    monkeypatch.setattr(step, "run", lambda: step.seconds.append(30.0), raising=False)
    step.run_in_a_row()
    assert step.seconds == [30.0, 30.0]
    assert step._num_bytes == 3  # The peaks of the two steps are 1 and 3.


def test_short_steps_run_often_and_long_ones_twice() -> None:
    assert not is_enough([])
    assert not is_enough([30.0])
    assert is_enough([30.0, 30.0])
    assert not is_enough([0.1] * 19)
    assert is_enough([0.1] * 21)
    assert not is_enough([0.6] * 4)
    assert is_enough([0.6] * 5)


def test_batches_are_valid_for_most_inputs() -> None:
    spec = {
        "ids": tf.TensorSpec([None, 3], tf.int32),
        "image": tf.TensorSpec([None, 2, 2], tf.float32),
    }
    batch = synthetic_batch(spec, 5)  # type: ignore[arg-type]
    assert batch["ids"].shape == [5, 3]
    assert set(batch["ids"].numpy().flat) == {1}
    assert 0 <= batch["image"].numpy().min() < batch["image"].numpy().max() < 1


@pytest.mark.exhaustive
def test_a_real_step_is_timed_with_its_update() -> None:
    params = reduced_params("image.keras_digits.KerasDigits")
    tracer = ModelTracer(params.task, params.input.Instantiate().element_spec)
    traced = tracer.trace(2)
    alone = [CellSeconds(1e-3, 2e-3)] * tracer.num_cells
    resources = Resources((made_up_device(10**12),) * 2, 8)
    found = measured_correction(
        tracer, stage_devices(None, 2), traced.costs, alone, resources.devices[0]
    )
    assert found is not None
    assert found.forward > 0
    assert found.backward > 0
    assert found.contention.slowdown >= 1
    assert min(found.contention[2:]) + 1 > 0


@pytest.mark.exhaustive
def test_a_step_needs_the_most_memory_of_some_in_a_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peaks = itertools.chain([3, 5, 4], itertools.repeat(2))

    class FakeWatch(MemoryWatch):
        def peaks(self) -> list[MemoryPeak]:
            """Counts every other call, since a step begins with one."""
            self._ends = not getattr(self, "_ends", True)
            return [MemoryPeak([0], next(peaks))] if self._ends else []

    monkeypatch.setattr(real_steps, "MemoryWatch", FakeWatch)
    params = reduced_params("image.keras_digits.KerasDigits")
    tracer = ModelTracer(params.task, params.input.Instantiate().element_spec)
    model = tracer.trace(2).costs
    alone = [CellSeconds(1e-3, 2e-3)] * tracer.num_cells
    step = real_step(
        tracer, stage_devices(None, 1), model, alone, made_up_device(10**12)
    )
    assert step is not None
    step.run_in_a_row()
    assert step.take_total()[1] == 5
