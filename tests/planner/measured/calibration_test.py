"""The calibration of this machine's devices, and its free memory."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from lingvo_pipe.pipeline.devices.device_names import DeviceName
from lingvo_pipe.pipeline.devices.stage_devices import stage_devices
from lingvo_pipe.planner.measured import calibration
from lingvo_pipe.planner.measured.calibration import (
    available_memory,
    calibrated_device,
    knows_memory,
)
from lingvo_pipe.planner.resources.device_model import MEASURED, DeviceModel
from lingvo_pipe.planner.resources.known_devices import DEVICES


def calibrated(number: int) -> DeviceModel:
    return calibrated_device(stage_devices(None, number))


def total_memory() -> int:
    """Returns the bytes of the machine."""
    (line,) = (
        each
        for each in Path("/proc/meminfo").read_text().splitlines()
        if each.startswith("MemTotal:")
    )
    return int(line.split()[1]) * 1024


def test_devices_have_speed_links_and_a_share_of_the_memory() -> None:
    device = calibrated(2)
    assert device.name == MEASURED
    figures = [device.link_bandwidth, device.operation_seconds, device.memory_bandwidth]
    assert all(0 < figure < math.inf for figure in figures), figures
    # The latency of a short message is hidden if the receiver is late.
    assert 0 <= device.link_seconds < math.inf
    assert 0 < device.usable_bytes <= total_memory() // 2
    # A message takes some time, and a large one more.
    assert 0 < device.link.seconds(1) < device.link.seconds(2**30) < math.inf
    assert device.has_replicas


def test_a_device_with_memory_of_its_own_has_a_link_to_its_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert calibrated(1).host_bandwidth is None
    monkeypatch.setattr(DeviceName, "has_host_memory", False)
    host_bandwidth = calibrated(1).host_bandwidth
    assert host_bandwidth is not None
    assert 0 < host_bandwidth < math.inf


def test_one_device_sends_nothing() -> None:
    device = calibrated(1)
    assert device.link.seconds(2**30) == 0
    assert device.operation_seconds > 0
    assert device.memory_bandwidth > 0
    assert device.usable_bytes > 0


@pytest.mark.parametrize(("small", "latency"), [(-0.1, 0.0), (0.5, 0.5)])
def test_a_link_has_the_time_of_a_small_message(
    small: float, latency: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise may make the fitted time negative."""
    monkeypatch.setattr(calibration, "_measure", lambda devices, rows: (0.0, 2.0))
    link = calibration._measured_link(LOCAL * 2, small)
    assert link.latency == latency
    rows = calibration._LARGE - calibration._SMALL
    seconds = link.seconds(4 * rows * calibration._DIM)
    assert seconds == pytest.approx(latency + 2.0 - small)


WORKERS = [f"/job:worker/replica:0/task:{i}/device:CPU:0" for i in range(2)]
LOCAL = ["/job:localhost/replica:0/task:0/device:CPU:0"]
TPUS = [f"/job:localhost/replica:0/task:0/device:TPU:{i}" for i in range(2)]


@pytest.fixture
def not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs nothing on the devices."""
    monkeypatch.setattr(calibration, "_measure", lambda *_: (1e-3, 1e-4))
    monkeypatch.setattr(calibration, "_update_bandwidth", lambda device: 1e9)


def test_the_memory_of_workers_is_not_known(not_run: None) -> None:
    assert knows_memory(LOCAL)
    for devices in (WORKERS, [*LOCAL, *WORKERS]):
        assert not knows_memory(devices)
        assert calibrated_device(devices).usable_bytes >= 2**50


@pytest.mark.parametrize(("devices", "expected"), [(TPUS, False), (WORKERS, True)])
def test_tpus_have_no_replicas(
    devices: list[str], expected: bool, not_run: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured ones have none either, though they have another name."""
    monkeypatch.setattr(calibration, "_memory", lambda devices: 2**30)
    device = calibrated_device(devices)
    assert (device.name, device.has_replicas) == (MEASURED, expected)
    assert not device.shares_memory
    for name, known in DEVICES.items():
        assert known.has_replicas != name.startswith("TPU")


@pytest.mark.parametrize(
    ("sizes", "per_host"),
    [([2, 2], 2), ([3, 3, 3], 3), ([4], None), ([1, 1], None), ([2, 1], None)],
)
def test_the_link_between_workers_is_measured_too(
    sizes: list[int], per_host: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There must be several, with equally many devices, and more than one."""

    def measure(devices: list[str], num_rows: int) -> tuple[float, float]:
        first, second = devices[:2]
        slow = 10 if first.split("/device")[0] != second.split("/device")[0] else 1
        return 1e-3, slow * num_rows / 10**6

    monkeypatch.setattr(calibration, "_measure", measure)
    monkeypatch.setattr(calibration, "_update_bandwidth", lambda device: 1e9)
    devices = [
        f"/job:worker/replica:0/task:{i}/device:CPU:{k}"
        for i, size in enumerate(sizes)
        for k in range(size)
    ]
    device = calibrated_device(devices)
    if per_host is None:
        assert device.hosts is None
        return
    assert device.hosts is not None
    assert device.hosts.devices_per_host == per_host
    assert device.hosts.link.bandwidth == pytest.approx(device.link_bandwidth / 10)
    assert device.hosts.bandwidth == device.hosts.link.bandwidth


FREE = 8 * 2**30
V2 = ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")
V1 = (
    "sys/fs/cgroup/memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "total_inactive_file",
)


@pytest.mark.parametrize("names", [V1, V2])
@pytest.mark.parametrize(
    ("limit", "used", "files", "expected"),
    [
        (3 * 2**30, 2**30, 0, 2 * 2**30),
        (3 * 2**30, 2**30, 2**20, 2 * 2**30 + 2**20),
        (2**63 - 4096, 2**30, 0, FREE),
        (2**30, 2**30 + 5, 0, 0),
        ("max", 2**30, 0, FREE),
    ],
)
def test_a_container_has_what_it_may_still_take(
    tmp_path: Path,
    names: tuple[str, ...],
    limit: int | str,
    used: int,
    files: int,
    expected: int,
) -> None:
    (tmp_path / "proc").mkdir()
    free = f"MemTotal: 99999999 kB\nMemAvailable: {FREE // 1024} kB\nHuge: 0\n"
    (tmp_path / "proc/meminfo").write_text(free)
    assert available_memory(tmp_path) == FREE
    folder = tmp_path / names[0]
    folder.mkdir(parents=True)
    (folder / names[1]).write_text(f"{limit}\n")
    (folder / names[2]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"cache 7\n{names[3]} {files}\n")
    assert available_memory(tmp_path) == expected


def test_this_machine_has_memory() -> None:
    assert 0 < available_memory() <= total_memory()
