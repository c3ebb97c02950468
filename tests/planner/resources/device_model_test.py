"""Devices and their kinds, as users write them."""

from __future__ import annotations

import pytest

from lingvo_pipe.planner.resources.device_model import (
    DEVICES,
    DeviceRequest,
    parse_devices,
)
from tests.support.errors import fails


def test_devices_are_a_number_of_a_kind() -> None:
    assert parse_devices("8xtpuv3") == DeviceRequest(8, "TPUv3")
    assert parse_devices(" H200 ") == DeviceRequest(1, "H200")
    for name in DEVICES:
        assert parse_devices(f"12x{name}") == DeviceRequest(12, name)
        assert parse_devices(f"3x4x{name}") == DeviceRequest(12, name, 4)


@pytest.mark.parametrize(
    "text",
    ["0xTPUv3", "8 TPUv3", "", "x8", "8x", "0x8xA100", "2x8xmeasured", "8xTPUv4"],
)
def test_other_texts_are_refused(text: str) -> None:
    with fails(path="--devices", got=text) as error:
        parse_devices(text)
    assert all(name in error.value.hint for name in DEVICES)
    assert ("mean 'TPUv" in error.value.hint) == (text in ("8 TPUv3", "8xTPUv4"))


def test_reserved_memory_is_not_usable() -> None:
    for device in DEVICES.values():
        assert 0 < device.usable_bytes < device.memory


def test_an_unknown_dtype_is_refused() -> None:
    expected = "float32 or bfloat16 on A100"
    with fails(path="fprop_dtype", expected=expected, got="float64"):
        DEVICES["A100"].speed("float64")
