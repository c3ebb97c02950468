"""Devices and their kinds, as users write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lingvo_pipe.planner.resources.device_model import DeviceModel
from lingvo_pipe.planner.resources.known_devices import DEVICES, parse_devices
from tests.support.errors import fails

FIELDS = {
    "name": "X1",
    "memory": 80,
    "teraflops": {"float32": 156, "bfloat16": 312},
    "memory_bandwidth": 2000,
    "link_bandwidth": 300,
}


def models_of(text: str, network_gbits: float | None = None) -> list[DeviceModel]:
    requested = parse_devices(text, network_gbits)
    assert not isinstance(requested, int)
    return list(requested)


def test_devices_are_a_number_of_a_kind() -> None:
    assert parse_devices("8xtpuv3") == (DEVICES["TPUv3"],) * 8
    assert parse_devices(" H200 ") == (DEVICES["H200"],)
    assert parse_devices("A100") == (DEVICES["A100-40GB"],)
    for name, kind in DEVICES.items():
        assert parse_devices(f"12x{name}") == (kind,) * 12
        assert parse_devices(f"3x4x{name}", 100) == (kind.on_hosts(4, 100),) * 12
    assert parse_devices("2xmeasured") == 2


def test_a_list_has_several_kinds_in_order() -> None:
    kinds = [DEVICES["A100-40GB"]] * 2 + [DEVICES["T4"]]
    assert parse_devices("2xA100, t4") == tuple(kinds)
    assert parse_devices("T4,2xa100") == tuple(kinds[::-1])
    assert parse_devices("4xA100,4xA100-40GB") == parse_devices("8xA100")
    assert parse_devices("TPUv3,TPUv3") == parse_devices("2xTPUv3")
    sized = models_of("T4,2x80GB@312TFLOPS")
    assert [model.name for model in sized] == ["T4", *["80GB@312TFLOPS"] * 2]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("4xA100,2x8xT4", "2x8xT4"),
        ("2xmeasured,4xT4", "2xmeasured"),
        ("4xA100,4xT5", "4xT5"),
        ("4xA100,", ""),
        ("4xA100,4xTPUv3", "4xA100,4xTPUv3"),
        ("TPUv3,TPUv2", "TPUv3,TPUv2"),
    ],
)
def test_an_error_names_the_part_of_a_list(text: str, part: str) -> None:
    with fails(path="--devices", got=part) as error:
        parse_devices(text)
    assert error.value.hint


@pytest.mark.parametrize(
    "text",
    ["0xTPUv3", "8 TPUv3", "", "x8", "8x", "0x8xA100", "2x8xmeasured", "8xTPUv7"],
)
def test_other_texts_are_refused(text: str) -> None:
    with fails(path="--devices", got=text) as error:
        parse_devices(text)
    assert all(name in error.value.hint for name in DEVICES)
    assert ("mean 'TPUv" in error.value.hint) == (text in ("8 TPUv3", "8xTPUv7"))


def test_figures_are_plausible() -> None:
    """16 bits are faster than 32, and a link is slower than the memory."""
    for device in DEVICES.values():
        assert 0 < device.usable_bytes < device.memory
        single, half = device.flops.values()
        assert 1e12 < single <= half < 1e16
        assert device.link_bandwidth < device.memory_bandwidth < 1e13


def test_an_unknown_dtype_is_refused() -> None:
    expected = "float32 or bfloat16 on A100-40GB"
    with fails(path="fprop_dtype", expected=expected, got="float64"):
        DEVICES["A100-40GB"].speed("float64")


def test_any_device_is_given_by_memory_and_speed() -> None:
    kind, *others = models_of("2x8x80gb@312.5TFLOPS", 25)
    assert kind.hosts is not None
    sizes = 1 + len(others), kind.memory, kind.hosts.devices_per_host
    assert sizes == (16, 80 * 10**9, 8)
    assert set(kind.flops.values()) == {312.5e12}
    assert kind.link_bandwidth <= min(x.link_bandwidth for x in DEVICES.values())
    for name in ("1GB@312TFLOPS", "80GB@0TFLOPS"):
        with fails(path="--devices", got=name):
            parse_devices(f"8x{name}")


def _written(folder: Path, content: Any) -> str:
    path = folder / "device.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def test_a_device_may_be_in_a_file(tmp_path: Path) -> None:
    kind, *_ = models_of(f"8x{_written(tmp_path, {**FIELDS, 'efficiency': 0.5})}")
    assert (kind.name, kind.memory, kind.link_bandwidth) == ("X1", 80e9, 300e9)
    assert kind.speed("bfloat16") == 156e12


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("memory", "80"),
        ("memory", 1),
        ("teraflops", {}),
        ("teraflops", {"float8": 1}),
        ("teraflops", {"float32": 0}),
        ("memory_bandwidth", True),
        ("link_bandwidth", float("nan")),
        ("efficiency", 40),
        ("memmory", 80),
    ],
)
def test_a_files_wrong_field_is_named(tmp_path: Path, field: str, value: Any) -> None:
    path = _written(tmp_path, {**FIELDS, field: value})
    with fails(path=f"{path}: {field}") as error:
        parse_devices(f"8x{path}")
    assert error.value.expected


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = _written(tmp_path, "{")
    with fails(path=path):
        parse_devices(path)
    path = _written(tmp_path, {k: v for k, v in FIELDS.items() if k != "memory"})
    with fails(path=f"{path}: memory", got="nothing"):
        parse_devices(path)
    with fails(path=(missing := f"{path}.json"), got="no file"):
        parse_devices(missing)
    (tmp_path / "link.json").symlink_to(path)
    with fails(path=str(tmp_path / "link.json")):
        parse_devices(str(tmp_path / "link.json"))
