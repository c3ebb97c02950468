"""Devices and their kinds, as users write them."""

from __future__ import annotations

import re

import pytest

from lingvo_pipe.planner.resources.device_model import (
    DEVICES,
    DeviceRequest,
    parse_devices,
)


def test_devices_are_a_number_of_a_kind() -> None:
    assert parse_devices("8xtpuv3") == DeviceRequest(8, "TPUv3")
    assert parse_devices(" H200 ") == DeviceRequest(1, "H200")
    for name in DEVICES:
        assert parse_devices(f"12x{name}") == DeviceRequest(12, name)
        assert parse_devices(f"3x4x{name}") == DeviceRequest(12, name, 4)


@pytest.mark.parametrize(
    "text",
    ["0xTPUv3", "8 TPUv3", "", "x8", "-1xA100", "8x", "0x8xA100", "2x8xmeasured"],
)
def test_other_texts_are_refused(text: str) -> None:
    words = f"--devices.*8xTPUv3.*{re.escape(repr(text))}"
    with pytest.raises(ValueError, match=words) as error:
        parse_devices(text)
    assert all(name in str(error.value) for name in DEVICES)


def test_a_near_name_is_suggested() -> None:
    with pytest.raises(ValueError, match="--devices.*'8xTPUv4'.*'TPUv[23]'"):
        parse_devices("8xTPUv4")


def test_reserved_memory_is_not_usable() -> None:
    for device in DEVICES.values():
        assert 0 < device.usable_bytes < device.memory


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\bA100\b.*float32.*bfloat16.*'float64'"):
        DEVICES["A100"].speed("float64")
