"""The devices of this machine are measured."""

from __future__ import annotations

import math
from pathlib import Path

from lingvo_pipe.pipeline.devices.stage_devices import stage_devices
from lingvo_pipe.planner.calibration import calibrated_device
from lingvo_pipe.planner.device_model import MEASURED, DeviceModel


def calibrated(number: int) -> DeviceModel:
    return calibrated_device(stage_devices(None, number))


def total_memory() -> int:
    """Bytes of the machine."""
    (line,) = (
        each
        for each in Path("/proc/meminfo").read_text().splitlines()
        if each.startswith("MemTotal:")
    )
    return int(line.split()[1]) * 1024


def test_devices_have_speed_links_and_a_share_of_the_memory() -> None:
    device = calibrated(2)
    assert device.name == MEASURED
    figures = [
        device.link_bandwidth,
        device.operation_seconds,
        device.memory_bandwidth,
    ]
    assert all(0 < figure < math.inf for figure in figures), figures
    # Of a short message's way nothing is noticed where the receiver comes later.
    assert 0 <= device.link_seconds < math.inf
    assert 0 < device.usable <= total_memory() // 2
    # A message is there after something, and a large one later.
    assert 0 < device.send_seconds(1) < device.send_seconds(2**30) < math.inf
    assert device.has_replicas


def test_one_device_sends_nothing() -> None:
    device = calibrated(1)
    assert device.send_seconds(2**30) == 0
    assert device.operation_seconds > 0
    assert device.memory_bandwidth > 0
    assert device.usable > 0
