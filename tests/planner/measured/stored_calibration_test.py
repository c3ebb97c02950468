"""This machine is calibrated once, and again if anything has changed."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lingvo_pipe.pipeline.devices.stage_devices import stage_devices
from lingvo_pipe.planner.measured import calibration, stored_calibration
from lingvo_pipe.planner.measured.calibration import Figures, device_of
from lingvo_pipe.planner.measured.stored_calibration import machine_device

FIGURES = Figures(1e-4, 2e-5, 3e9, 4e10)
WORKERS = [f"/job:worker/replica:0/task:{i}/device:CPU:0" for i in range(2)]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """The devices that were measured, in turn."""
    found: list[list[str]] = []

    def measure(devices: Sequence[str]) -> Figures:
        found.append(list(devices))
        return FIGURES._replace(operation_seconds=1e-4 * len(found))

    for module in (calibration, stored_calibration):
        monkeypatch.setattr(module, "measured_figures", measure)
    monkeypatch.setenv("LINGVO_PIPE_CACHE", str(tmp_path / "cache" / "folder"))
    return found


def devices(number: int = 2) -> list[str]:
    return stage_devices(None, number)


def stored(folder: Path) -> Path:
    (path,) = folder.rglob("calibration.json")
    return path


def test_the_second_time_nothing_is_measured(measured: list[list[str]]) -> None:
    first, second = machine_device(devices()), machine_device(devices())
    assert len(measured) == 1
    assert second.operation_seconds == first.operation_seconds
    expected = device_of(devices(), FIGURES)
    figures = {name: getattr(second, name) for name in Figures._fields}
    assert figures == {name: getattr(expected, name) for name in Figures._fields}
    machine_device(devices(3))  # Only two of them would be measured.
    assert len(measured) == 1


CHANGES: list[tuple[Any, str, Any]] = [
    (platform, "node", lambda: "another host"),
    (stored_calibration.os, "sched_getaffinity", lambda _: range(999)),
    (stored_calibration.tf.version, "VERSION", "0.0"),
    (stored_calibration, "VERSION", "0.0"),
]


@pytest.mark.parametrize(("place", "name", "value"), CHANGES)
def test_a_change_is_measured_and_the_old_figures_stay(
    place: Any,
    name: str,
    value: Any,
    measured: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine_device(devices())
    with monkeypatch.context() as changed:
        changed.setattr(place, name, value)
        machine_device(devices())
        assert len(measured) == 2
        machine_device(devices())
    assert machine_device(devices()).operation_seconds == 1e-4
    assert len(measured) == 2


def test_other_devices_are_measured(measured: list[list[str]]) -> None:
    for each in (devices(1), devices(), devices()[::-1]):
        machine_device(each)
    assert measured == [devices(1), devices(), devices()[::-1]]


def test_the_user_may_ask_for_new_figures(
    measured: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine_device(devices())
    with monkeypatch.context() as changed:
        changed.setenv("LINGVO_PIPE_RECALIBRATE", "1")
        machine_device(devices())
    assert len(measured) == 2
    assert machine_device(devices()).operation_seconds == 2e-4


def test_workers_are_always_measured(measured: list[list[str]], tmp_path: Path) -> None:
    """Another cluster's workers have the same names."""
    machine_device(WORKERS)
    machine_device(WORKERS)
    assert len(measured) == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[:-5],
        lambda text: "[]",
        lambda text: text.replace("0.0001", '"fast"'),
        lambda text: text.replace("0.0001", "-1.0"),
        lambda text: text.replace("0.0001", "NaN"),
        lambda text: text.replace("3000000000.0", "0.0"),
        lambda text: text.replace("3000000000.0", "Infinity"),
        lambda text: text.replace("3000000000.0", "1e300"),
        lambda text: text.replace("2e-05", "1e5"),
        lambda text: text.replace("link_bandwidth", "bandwidth"),
        lambda text: text.replace("null", "0.0"),
        lambda text: text.replace("40000000000.0", "null"),
    ],
)
def test_a_damaged_file_is_replaced(
    damage: Any, measured: list[list[str]], tmp_path: Path
) -> None:
    machine_device(devices())
    path = stored(tmp_path)
    before = path.read_text()
    path.write_text(damage(before))
    assert path.read_text() != before
    machine_device(devices())
    assert len(measured) == 2
    machine_device(devices())
    assert len(measured) == 2
    assert len(json.loads(path.read_text())) == 1


def test_without_a_folder_to_write_to_each_run_measures(
    measured: list[list[str]], tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("a file in its place")
    for _ in range(2):
        assert machine_device(devices()).link_bandwidth == FIGURES.link_bandwidth
    assert len(measured) == 2


def test_figures_that_are_measured_can_be_stored(tmp_path: Path) -> None:
    """One device alone has an infinite bandwidth."""
    figures = stored_calibration.measured_figures(devices(1))
    text = json.dumps(figures._asdict())
    assert stored_calibration._figures(json.loads(text), has_link=False) == figures
