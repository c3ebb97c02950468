"""The doctor finds equal bytes, names wrong ones, and writes a file."""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from lingvo_pipe.pipeline.devices.own_addresses import unused_ports
from lingvo_pipe.pipeline.devices.stage_devices import stage_devices
from lingvo_pipe.pipeline.schedules.by_name import SCHEDULE_NAMES
from lingvo_pipe.pipeline.schedules.recompute import POLICIES
from lingvo_pipe.planner.resources.device_model import DeviceModel
from lingvo_pipe.tools.doctor import measurements
from lingvo_pipe.tools.doctor.byte_matrix import (
    Combination,
    combinations,
    differing,
    train_combination,
)
from lingvo_pipe.tools.doctor.examination import Checks, examine, report_text
from lingvo_pipe.tools.doctor.model import Configuration
from tests.support.command_line import CommandLine, Outcome
from tests.support.errors import fails
from tools.benchmarks.worker_process import process_group

CPUS = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(8)]


# A device's calibration, which the planner's tests measure.
_MEASURED = DeviceModel(
    name="measured",
    memory=10**9,
    reserved=0,
    flops={},
    memory_bandwidth=1e9,
    link_bandwidth=1e9,
)


@pytest.mark.parametrize("number", [1, 2, 3, 4, 8])
def test_the_matrix_has_all_ways_once(number: int) -> None:
    devices = CPUS[:number]
    ways = list(combinations(devices, quick=False))
    assert len({way.name for way in ways}) == len(ways)
    found = {
        (w.configuration.schedule, w.configuration.recompute, w.devices)
        for w in ways
        if w.configuration.offload is None
    }
    offloading = [w for w in ways if w.configuration.offload]
    assert [w.devices for w in offloading] == [(device,) for device in devices]
    schedules = set(SCHEDULE_NAMES) - {"local"}
    numbers = {1, number, *(k for k in (2, 4) if k <= number)}
    used = [tuple(devices[:k]) for k in numbers]
    assert found == {
        *itertools.product(schedules, POLICIES, used),
        *(("gpipe", "always", (device,)) for device in devices),
    }
    assert ways[0].devices == (devices[0],)
    quick = {way.name for way in combinations(devices, quick=True)}
    assert quick <= {way.name for way in ways}


@pytest.mark.parametrize("losses", [(1.0, 1.1), (1.0, math.nan), (math.nan, 1.0)])
def test_losses_that_differ_or_are_nan_are_refused(
    losses: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    way = SimpleNamespace(pipeline=lambda devices: None, batch=lambda: None)
    plain, pipelined = losses
    for name, value in {
        "Configuration": lambda *sizes: way,
        "plain_step": lambda *_: lambda: plain,
        "pipelined_step": lambda *_: lambda: pipelined,
    }.items():
        monkeypatch.setattr(measurements, name, value)
    with fails(path="loss"):
        measurements.step_rows(CPUS[:1], 1)


def _faulty(wrong: str) -> Callable[[Combination], dict[str, bytes]]:
    """Returns what training leaves, made up, with one wrong byte."""

    def train(way: Combination) -> dict[str, bytes]:
        return {"loss": b"1", "w": b"21" if way.name == wrong else b"20"}

    return train


@pytest.mark.exhaustive
def test_a_wrong_byte_is_a_problem_of_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    small = Configuration(2, 8, 8, 4, num_micro_batches=8)
    monkeypatch.setattr(measurements, "Configuration", lambda *sizes: small)
    monkeypatch.setattr(measurements, "calibrated_device", lambda devices: _MEASURED)
    devices = stage_devices(None, 2)
    wrong = [*combinations(devices, quick=True)][-1].name
    report = examine(devices, True, lambda line: None, _faulty(wrong))
    (problem,) = report["problems"]
    assert wrong in problem
    assert problem.endswith(" in w")
    assert [row for row in report["bytes"] if row["differing"]] == [
        {"way": wrong, "differing": ["w"]}
    ]
    assert report_text(report).endswith(f"problem: {problem}\nFAILED")
    assert [row["device"] for row in report["devices"]] == ["cpu:0", "cpu:1"]
    assert [row["between"] for row in report["links"]] == ["cpu:0 and cpu:1"]
    assert [row["seconds"] > 0 for row in report["steps"]] == [True] * 3
    assert json.loads(json.dumps(report)) == report


@pytest.mark.exhaustive
def test_training_in_two_ways_leaves_equal_bytes() -> None:
    ways = [*combinations(stage_devices(None, 2), quick=False)]
    first, *_, last = ways
    offloading = next(way for way in ways if way.configuration.offload)
    left = train_combination(first)
    assert len(left) == 1 + 16 * first.configuration.num_layers
    assert differing(train_combination(last), left) == []
    assert differing(train_combination(offloading), left) == []
    name = next(name for name in left if name != "loss")
    changed = left | {name: left[name][:-1] + bytes([left[name][-1] ^ 1])}
    assert differing(changed, left) == [name]
    assert differing({"loss": left["loss"]}, left) == [*left][1:]


def test_failures_are_problems_and_time_is_limited() -> None:
    def fail() -> int:
        raise ValueError("bad link\nmore")

    seconds = iter(range(10))
    checks = Checks(lambda line: None, clock=lambda: next(seconds))
    every: dict[str, Callable[[], int]] = {"a": lambda: 1, "b": fail, "c": lambda: 3}
    assert checks.run("sends", every | {"d": lambda: 4, "e": lambda: 5}, 3) == {
        "a": 1,
        "c": 3,
    }
    assert checks.problems == ["sends: b: ValueError: bad link"]
    assert checks.no_time_for == {"sends": 2}


@pytest.mark.parametrize(
    ("flags", "path"),
    [
        (["--output=absent/report.json"], "--output"),
        (["--devices=gpu:x"], "gpu:x"),
        (["--cluster=there"], "--cluster"),
    ],
)
def test_refuses(flags: list[str], path: str, tmp_path: Path) -> None:
    code, _, errors = _run(tmp_path, *flags)
    assert code == 1
    assert "error: " in errors
    assert path in errors
    assert "device: " not in errors


@pytest.mark.exhaustive
def test_the_command_finds_two_workers_well(tmp_path: Path) -> None:
    addresses = ",".join(f"localhost:{port}" for port in unused_ports(2))
    cluster = f"--cluster=worker={addresses}"
    worker = [sys.executable, "-m", "lingvo_pipe.trainer", cluster, "--job=worker"]
    with process_group("workers", [[*worker, f"--task={i}"] for i in (0, 1)]) as group:
        group.answers()
        _check(tmp_path, ["worker:0/cpu:0", "worker:1/cpu:0"], cluster)


def _run(folder: Path, *flags: str) -> Outcome:
    command = ("-m", "lingvo_pipe.tools.doctor.doctor", "--quick", *flags)
    return CommandLine(folder).run(*command)


def _check(folder: Path, devices: list[str], *flags: str) -> None:
    path = folder / "report.json"
    code, output, errors = _run(folder, f"--output={path}", *flags)
    assert code == 0, output + errors
    report = json.loads(path.read_text())
    assert output == report_text(report) + "\n"
    assert output.endswith("\nok\n")
    assert [row["device"] for row in report["devices"]] == devices
    ways = combinations(CPUS[: len(devices)], quick=True)
    assert len(report["bytes"]) == len([*ways])
