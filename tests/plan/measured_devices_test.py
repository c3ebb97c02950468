"""Plans for this machine's devices use measured times."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import pytest

from lingvo_pipe.pipeline.splitting.cell_costs import CellSeconds
from lingvo_pipe.planner.measured import measured_models
from lingvo_pipe.planner.resources.device_model import MEASURED, DeviceModel
from lingvo_pipe.planner.resources.known_devices import DEVICES, parse_devices
from lingvo_pipe.planner.resources.resources import Constraints
from lingvo_pipe.planner.search.correction import Correction
from lingvo_pipe.tools.plan import planned_model
from lingvo_pipe.tools.plan.plan import main
from lingvo_pipe.tools.plan.planned_model import (
    PlannedModel,
    find_devices,
    largest_that_fits,
)

SECONDS = 2.0


@pytest.fixture
def measured_on(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Returns the devices on which cells have been timed; all take seconds."""
    found: set[str] = set()

    def timed(calls: Sequence[Any], specs: Any, device: str) -> list[CellSeconds]:
        found.add(device)
        return [CellSeconds(SECONDS, 2 * SECONDS) for _ in calls]

    def calibrated(names: Sequence[str]) -> DeviceModel:
        assert len(names) == 2
        return dataclasses.replace(DEVICES["H100"], name=MEASURED, flops={})

    monkeypatch.setattr(measured_models, "measured_seconds", timed)
    monkeypatch.setattr(measured_models, "measured_correction", lambda *_: Correction())
    monkeypatch.setattr(planned_model, "machine_device", calibrated)
    return found


def test_times_are_the_measured_ones(
    measured_on: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--num_stages=1", "--num_replicas=1", "--num_micro_batches=4"]
    model = "--model=lm.text.TransformerTiny"
    flags = [model, "--devices=2xmeasured", *asked, "--recompute=never"]
    assert main([*flags, "--schedule=1f1b"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"\b2 measured\b", out.partition("\n")[0])
    (seconds,) = re.findall(r"^ *([\d.]+) s .* 1f1b +never$", out, re.M)
    # Six cells and the loss, four micro-batches, forward and backward.
    assert float(seconds) == pytest.approx(4 * 7 * 3 * SECONDS, rel=0.01)
    (device,) = measured_on
    assert device.endswith(":0")


@pytest.mark.exhaustive
def test_a_model_that_does_not_fit_is_followed_by_the_next(
    measured_on: set[str],
) -> None:
    lines: list[str] = []

    def register(name: str) -> PlannedModel:
        limit = 10**10 if name.endswith("Local") else 10**5
        override = f"task.pipeline.memory_limit : {limit}"
        return PlannedModel("lm.text.TransformerTiny", override)

    devices = find_devices(parse_devices(f"2x{MEASURED}"))
    constraints = Constraints(
        num_replicas=1,
        num_devices=1,
        num_micro_batches=4,
        schedule="1f1b",
        recompute="never",
    )
    found = largest_that_fits(
        "lm.text.TransformerTiny",
        register,
        lambda model: model.plan(devices, constraints),
        lines.append,
    )
    assert max(found.fastest[0].bytes_by_device) > 10**5
    assert ["memory_limit=100000 " in line for line in lines] == [False, True, False]


def test_too_many_devices_are_reported_in_a_line() -> None:
    with pytest.raises(SystemExit, match=r"^error: .*\Z"):
        main(["--model=lm.text.TransformerTiny", "--devices=99xmeasured"])
