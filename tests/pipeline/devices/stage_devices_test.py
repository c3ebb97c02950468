from __future__ import annotations

import os
import re
from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.core import tensorflow_startup
from lingvo_pipe.core.errors import UserRuntimeError
from lingvo_pipe.pipeline.devices import stage_devices as module
from lingvo_pipe.pipeline.devices.cluster_spec import Cluster
from lingvo_pipe.pipeline.devices.device_names import device_name
from lingvo_pipe.pipeline.devices.stage_devices import (
    initialize_devices,
    loop_device,
    must_compile,
    stage_devices,
    unused_note,
)
from tests.support.errors import fails


@pytest.mark.parametrize(
    ("devices", "workers", "got", "hint"),
    [
        (["gpu:63"], [], ["gpu:63"], "cpu:0"),
        (["tpu:63"], [], ["tpu:63"], "cpu:0"),
        (["worker:0/cpu:0"], [], ["worker:0/cpu:0"], "--cluster="),
        (["cpu:0", "worker:1/cpu:0"], ["a:1"], ["worker:1/cpu:0"], "--cluster="),
        (["cpu:0"], ["a:1", "b:1"], ["cpu:0"], "=worker:0/cpu:0,worker:1/cpu:0."),
        (["worker:0/tpu:0"], ["a:1"], ["worker:0/tpu:0"], ""),
        (0, [], 0, ""),
        ([], [], [], ""),
        (["cpu"], [], ["cpu"], "cpu:0"),
    ],
)
def test_wrong_devices_are_refused_before_anything_is_set(
    devices: Any, workers: list[str], got: Any, hint: str
) -> None:
    with fails(path="devices", got=got) as error:
        initialize_devices(devices, Cluster(tuple(workers)) if workers else None)
    assert hint in error.value.hint


@pytest.mark.parametrize(
    ("devices", "hint"),
    [
        (2, ["1", "cpu:0,cpu:1"]),
        (["gpu:3"], ["1", "cpu:0"]),
        (["gpu:0", "tpu:0"], ["cpu:0,cpu:1"]),
    ],
)
def test_devices_that_work_are_named_on_a_machine_with_one_gpu(
    devices: Any, hint: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    present = tf.config.list_physical_devices

    def one_gpu(kind: str | None = None) -> list[Any]:
        return ["a GPU"] if kind == "GPU" else present(kind)

    monkeypatch.setattr(tf.config, "list_physical_devices", one_gpu)
    with fails(path="devices") as error:
        initialize_devices(devices)
    assert re.findall(r"--devices=([\w:,]*\w)", error.value.hint) == hint
    assert f"devices={hint[-1].split(',')}" in error.value.hint


def test_only_tpus_must_compile_and_leave_loops_to_their_hosts() -> None:
    local = "/job:localhost/replica:0/task:0/device:"
    for kind in ("CPU", "GPU"):
        assert not must_compile(f"{local}{kind}:3")
        assert loop_device(f"{local}{kind}:3") == f"{local}{kind}:3"
    assert must_compile(f"{local}TPU:3")
    assert loop_device(f"{local}TPU:3") == f"{local}CPU:0"


def test_no_devices_can_be_added_once_tensorflow_runs() -> None:
    tf.constant(1.0)
    for number in (8, 2):
        assert len(initialize_devices(number)) == number
    with fails(UserRuntimeError, path="initialize_devices"):
        initialize_devices(9)


def test_libraries_that_a_gpu_lacks_are_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tensorflow_startup, "NVIDIA", os.devnull)
    monkeypatch.setattr(tf.get_logger(), "propagate", True)
    for hidden in ("-1", None):
        if hidden is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        initialize_devices(1)
        assert ("tensorflow[and-cuda]" in caplog.text) == (hidden is None)


def test_stages_devices_get_their_full_names() -> None:
    full = "/job:localhost/replica:0/task:0/device:CPU:"
    names = ["cpu:1", "CPU:0", "/device:CPU:2", f"{full}3"]
    assert stage_devices(names, 4) == [f"{full}{i}" for i in (1, 0, 2, 3)]


@pytest.mark.parametrize(
    ("names", "number", "got"),
    [
        (None, 99, 8),
        (["cpu:0"], 2, ["cpu:0"]),
        (["cpu:0", "cpu:63"], 2, ["cpu:63"]),
        (["gpu:63", "cpu:0"], 2, ["gpu:63"]),
        (["hello", "cpu:0"], 2, ["hello"]),
        (["cpu:1", "/device:CPU:1"], 2, ["cpu:1"]),
        ("cpu:0", 2, "cpu:0"),
    ],
)
def test_absent_devices_of_stages_are_refused(
    names: Any, number: int, got: Any
) -> None:
    with fails(path="devices", got=got):
        stage_devices(names, number)


def test_devices_without_a_stage_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["cpu:0", "cpu:1", "gpu:0", "gpu:1"]
    names += [f"worker:{task}/{name}" for task in range(3) for name in names]
    present = [device_name(name) for name in names]
    module = "lingvo_pipe.pipeline.devices.stage_devices"
    monkeypatch.setattr(f"{module}._present", lambda kinds: present)

    def unused(*used: str) -> str:
        return unused_note([device_name(each).full for each in used])

    both = unused("gpu:0", "worker:1/gpu:1", "worker:1/cpu:0")
    assert both.endswith(": gpu:1, worker:0, worker:1/gpu:0, worker:2")
    assert unused(*names) == ""
    everywhere = [f"worker:{task}/gpu:{i}" for task in range(3) for i in range(2)]
    assert unused("gpu:0", "gpu:1", *everywhere) == ""


def test_devices_of_several_threads_are_warned_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stage_devices(None, 2)
    assert not caplog.messages
    monkeypatch.setattr(module, "num_threads", lambda: 7)
    with tf.Graph().as_default():  # As in the planner, which runs nothing.
        stage_devices(None, 2)
    assert not caplog.messages
    for names in (None, ["cpu:0", "cpu:1"], None):
        stage_devices(names, 2)
    (message,) = caplog.messages
    assert "7 threads" in message
    assert "initialize_devices" in message
