"""Contention between devices that share a machine."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lingvo_pipe.pipeline.schedules.by_rule import gpipe
from lingvo_pipe.pipeline.schedules.csv_file import write_csv
from lingvo_pipe.pipeline.schedules.offload import offloaded
from lingvo_pipe.pipeline.splitting.cell_costs import CellSeconds
from lingvo_pipe.planner.measured import expected_step as measured
from lingvo_pipe.planner.measured.expected_step import measured_slowdown
from tests.planner.made_up_model import made_up_device
from tests.support.errors import fails
from tests.training.toy_run import BATCH, Input, batch, make_task

TRACED: Any = SimpleNamespace(layers=[], specs={})
ALONE = [CellSeconds(0.25, 0.75)]


def found(monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float]) -> float:
    """Measures with these seconds of cells on each device while all are busy."""
    everyone = threading.Barrier(len(seconds))

    def measure(calls: Any, specs: Any, device: str) -> list[CellSeconds]:
        everyone.wait(timeout=300)  # This fails if they run in turn.
        return [CellSeconds(0.25 * seconds[device], 0.75 * seconds[device])]

    monkeypatch.setattr(measured, "measured_seconds", measure)
    return measured_slowdown(TRACED, list(seconds), ALONE)


@pytest.mark.parametrize(
    ("recompute", "offload"), [("always", None), ([1], None), ([0], [1])]
)
def test_a_step_on_several_devices_is_expected(
    recompute: Any, offload: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = made_up_device(10**9)
    monkeypatch.setattr(measured, "machine_device", lambda devices: machine)
    monkeypatch.setattr(measured, "measured_slowdown", lambda *unused: 2.0)
    p = make_task(num_stages=2).params.Copy()
    p.pipeline.Set(recompute=recompute, offload=offload)
    task: Any = p.Instantiate()
    spec, devices = Input(batch(0)).element_spec, ["cpu:0", "cpu:1"]
    step = measured.expected_step(task.params, task.pipeline, spec, BATCH, devices)
    assert step.timeline.schedule == task.pipeline.schedule
    assert 0 < step.timeline.step_seconds < 1
    assert len(step.bytes_by_device) == 2


def test_copies_of_a_file_are_not_predicted(tmp_path: Path) -> None:
    """A file may offload all cells without the param `offload`."""
    file = tmp_path / "schedule.csv"
    write_csv(offloaded(gpipe(2, BATCH)), file)
    p = make_task(num_stages=2).params.Copy()
    p.pipeline.Set(schedule=str(file), num_micro_batches=BATCH)
    task: Any = p.Instantiate()
    spec, devices = Input(batch(0)).element_spec, ["cpu:0", "cpu:1"]
    with fails(path="task.pipeline.offload", got=None):
        measured.expected_step(task.params, task.pipeline, spec, BATCH, devices)


def test_all_run_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, {"gpu:0": 1.0, "gpu:1": 1.5, "gpu:2": 3.0}) == 1.5


def test_contention_makes_no_device_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, {"gpu:0": 0.5, "gpu:1": 0.5}) == 1.0


def test_devices_share_the_cores_that_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However short their steps are; a worker's devices have cores elsewhere."""
    monkeypatch.setattr(measured.os, "sched_getaffinity", lambda _: {0, 1})
    here = {f"cpu:{i}": 1.0 for i in range(6)}
    assert found(monkeypatch, here) == 3.0
    assert found(monkeypatch, {f"worker:0/{x}": 1.0 for x in here}) == 1.0


def test_one_device_has_no_contention(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, {"cpu:0": 2.0}) == 1.0
