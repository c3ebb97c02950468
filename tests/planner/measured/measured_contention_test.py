"""Contention between devices that share a machine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lingvo_pipe.pipeline.devices.stage_devices import stage_devices
from lingvo_pipe.pipeline.splitting.cell_costs import CellSeconds
from lingvo_pipe.planner.costs.traced_model import ModelTracer
from lingvo_pipe.planner.measured import calibration
from lingvo_pipe.planner.measured import measured_contention as measured
from lingvo_pipe.planner.measured.measured_contention import measured_contention
from lingvo_pipe.planner.resources.device_model import Contention
from tests.registered_models.reduced_models import reduced_params
from tests.support.cases import exhaustive

TRACED: Any = SimpleNamespace(stage_calls=[], specs={})
ALONE = [CellSeconds(0.25, 0.75)]
PATHS = [f"cell/w{i}" for i in range(6)]


class Tracer:
    """A tracer of a model with ten times as many variables as are updated here."""

    trained_paths, num_variables, train_params = PATHS, 10 * len(PATHS), None


def found(monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float]) -> Contention:
    """Measures with these seconds of cells on each device while all are busy.

    Launching the update of one variable takes a millisecond per device.
    """
    everyone = threading.Barrier(len(seconds))
    clock = [0.0]

    def measure(calls: Any, specs: Any, device: str) -> list[CellSeconds]:
        everyone.wait(timeout=30)  # This fails if they run in turn.
        return [CellSeconds(0.25 * seconds[device], 0.75 * seconds[device])]

    def update(
        tracer: Any, paths: list[str], devices: Sequence[str]
    ) -> Callable[[], np.ndarray]:
        def run() -> np.ndarray:
            clock[0] += 1e-3 * len(paths) * len(devices)
            return np.zeros([])

        return lambda: SimpleNamespace(numpy=run)  # type: ignore[return-value]

    monkeypatch.setattr(measured, "measured_seconds", measure)
    monkeypatch.setattr(measured, "_make_update", update)
    timed = SimpleNamespace(perf_counter=lambda: clock[0])
    monkeypatch.setattr(calibration, "time", timed)
    tracer: Any = Tracer()
    return measured_contention(tracer, TRACED, list(seconds), ALONE)


def test_all_run_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    contention = found(monkeypatch, {"gpu:0": 1.0, "gpu:1": 1.5, "gpu:2": 3.0})
    assert contention == pytest.approx((3, 1.5, 0.06, 0.18))


def test_contention_makes_no_device_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, {"gpu:0": 0.5, "gpu:1": 0.5}).slowdown == 1.0


def test_devices_share_the_cores_that_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However short their steps are; a worker's devices have cores elsewhere."""
    monkeypatch.setattr(measured.os, "sched_getaffinity", lambda _: {0, 1})
    here = {f"cpu:{i}": 1.0 for i in range(6)}
    assert found(monkeypatch, here).slowdown == 3.0
    assert found(monkeypatch, {f"worker:0/{x}": 1.0 for x in here}).slowdown == 1.0


def test_one_device_has_no_contention(monkeypatch: pytest.MonkeyPatch) -> None:
    contention = found(monkeypatch, {"cpu:0": 2.0})
    assert contention == pytest.approx((2, 1.0, 0.06, 0.06))


@pytest.mark.parametrize("most", [4, 1000])
@pytest.mark.parametrize(
    "name", [exhaustive("image.digits.AmoebaNetDigits"), "lm.giant.L3"]
)
def test_an_update_is_like_the_models(
    name: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the model's optimizer, decay and averages."""
    monkeypatch.setattr(measured, "_MAX_VARIABLES", most)
    params = reduced_params(name)
    tracer = ModelTracer(params.task, params.input.Instantiate().element_spec)
    assert tracer.num_variables >= len(tracer.trained_paths) > 4
    for devices in (stage_devices(None, 1), stage_devices(None, 2)):
        assert measured._update_seconds(tracer, devices) > 0
