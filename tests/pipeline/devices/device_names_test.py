from __future__ import annotations

import pytest

from lingvo_pipe.pipeline.devices.device_names import (
    DeviceName,
    device_name,
    parse_devices,
    short_name,
)
from tests.support.errors import fails

LOCAL = "/job:localhost/replica:0/task:0/device:"
WORKER = "/job:worker/replica:0/task:12/device:"


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("3", 3),
        (" 1 ", 1),
        ("cpu:0", [f"{LOCAL}CPU:0"]),
        ("cpu:1, gpu:0", [f"{LOCAL}CPU:1", f"{LOCAL}GPU:0"]),
        ("TPU:10", [f"{LOCAL}TPU:10"]),
        ("worker:12/gpu:3,gpu:3", [f"{WORKER}GPU:3", f"{LOCAL}GPU:3"]),
        ("/job:worker/task:12/device:gpu:3", [f"{WORKER}GPU:3"]),
        (f"/device:CPU:2,{LOCAL}CPU:1", [f"{LOCAL}CPU:2", f"{LOCAL}CPU:1"]),
    ],
)
def test_devices_are_a_number_or_names(text: str, devices: int | list[str]) -> None:
    assert parse_devices(text) == devices


@pytest.mark.parametrize("short", ["cpu:0", "gpu:17", "tpu:3", "worker:5/gpu:2"])
def test_names_are_short_or_full(short: str) -> None:
    name = device_name(short)
    assert name.short == short
    assert device_name(name.full) == name
    assert short_name(name.full) == short
    assert name.host == DeviceName(name.worker, "CPU", 0)


@pytest.mark.parametrize(
    ("text", "got", "meant"),
    [
        ("0", 0, ""),
        ("4097", 4097, ""),
        ("0" * 20 + "3", ["0" * 20 + "3"], ""),
        ("\N{SUPERSCRIPT TWO}", ["\N{SUPERSCRIPT TWO}"], ""),
        ("cpu", ["cpu"], "'cpu:0'"),
        ("gpus:1", ["gpus:1"], "'gpu:1'"),
        ("worker:1:gpu:0", ["worker:1:gpu:0"], "'worker:1/gpu:0'"),
        ("cpu:0,tpu:x,7", ["tpu:x", "7"], "'tpu:0'"),
        ("/job:ps/task:0/device:CPU:0", ["/job:ps/task:0/device:CPU:0"], ""),
        ("/job:worker/device:CPU:0", ["/job:worker/device:CPU:0"], ""),
        ("", [""], ""),
        ("cpu:4096", ["cpu:4096"], ""),
        ("cpu:0,/device:CPU:0,gpu:0,CPU:0", ["cpu:0"], ""),
    ],
)
def test_other_text_is_refused(text: str, got: object, meant: str) -> None:
    with fails(path="--devices", got=got) as error:
        parse_devices(text)
    assert meant in error.value.hint
