"""Devices of one kind compute the same bytes, and other kinds are named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lingvo_pipe.pipeline.devices import (
    cluster,
    device_kind,
    stage_devices,  # noqa: F401  Asks for several.
)
from lingvo_pipe.pipeline.devices.cluster import device_kinds
from lingvo_pipe.pipeline.devices.device_kind import SETTINGS, kind_differences
from lingvo_pipe.pipeline.devices.device_names import device_name

CPU = {
    "type": "CPU",
    "TensorFlow": "2",
    "instruction sets": "avx avx2",
    "caches": "32K 48K",
    "settings": "",
}
GPU = {"type": "GPU", "model": "NVIDIA H100 (9, 0)", "settings": ""}
HERE = device_name("cpu:0")


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ([CPU], [CPU], []),
        ([CPU, GPU], [GPU, CPU], []),
        ([CPU], [GPU], ["CPU before, GPU now"]),
        ([CPU, GPU], [GPU], ["2 kinds of devices before, 1 other ones now"]),
        (
            [CPU],
            [CPU | {"instruction sets": "avx avx512f", "TensorFlow": "3"}],
            [
                "TensorFlow: 2 before, 3 now",
                "instruction sets: avx2 before, avx512f now",
            ],
        ),
        ([CPU], [CPU | {"caches": "48K 32K"}], ["caches: 32K 48K before, 48K 32K now"]),
        (
            [GPU],
            [GPU | {"model": "NVIDIA A100 (8, 0)"}],
            ["model: NVIDIA H100 (9, 0) before, NVIDIA A100 (8, 0) now"],
        ),
        (
            [CPU | {"settings": "A=1 B=2"}],
            [CPU | {"settings": "B=2"}],
            ["settings: A=1 before, none now"],
        ),
        (
            [CPU | {"settings": "XLA_FLAGS=--a --b"}],
            [CPU | {"settings": "XLA_FLAGS=--b --a"}],
            ["settings: XLA_FLAGS=--a --b before, XLA_FLAGS=--b --a now"],
        ),
        (
            [GPU | {"host's instruction sets": "avx avx2"}],
            [GPU | {"host's instruction sets": "avx avx512f"}],
            ["host's instruction sets: avx2 before, avx512f now"],
        ),
        # Attributes of an older version, or that the system hides.
        ([CPU], [CPU | {"threads": "1"}], []),
        ([CPU], [CPU | {"caches": ""}], []),
    ],
)
def test_differences_are_named(
    before: list[dict[str, str]], now: list[dict[str, str]], expected: list[str]
) -> None:
    assert kind_differences(before, now) == expected


@pytest.mark.parametrize(
    ("text", "processor", "instruction_sets"),
    [
        (
            "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\n"
            "model\t\t: 85\nmodel name\t: Xeon\nflags\t\t: fpu sse4_2 avx2 avx fma\n",
            "GenuineIntel 6 85",
            "avx avx2 fma sse4_2",
        ),
        (
            "processor\t: 0\nFeatures\t: fp asimd sve bf16 crc32\n"
            "CPU implementer\t: 0x41\nCPU part\t: 0xd40\n",
            "0x41 0xd40",
            "asimd bf16 sve",
        ),
        (None, "", ""),
    ],
    ids=["x86", "Arm", "hidden"],
)
def test_processors_are_read_as_far_as_the_system_shows_them(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str | None,
    processor: str,
    instruction_sets: str,
) -> None:
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    for i, size in enumerate(["32K", None, "1024K"]):
        (tmp_path / f"index{i}").mkdir()
        if size is not None:
            (tmp_path / f"index{i}/size").write_text(f"{size}\n")
    monkeypatch.setattr(device_kind, "CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(device_kind, "_CACHES", tmp_path)
    monkeypatch.setenv("XLA_FLAGS", "--a")
    kind = device_kind.local_kind(device_name("cpu:3"), 2)
    assert kind["processor"].split() == processor.split()
    assert kind["instruction sets"] == instruction_sets
    assert kind["caches"] == "32K 1024K"
    assert kind["threads"] == "2"
    assert "XLA_FLAGS=--a" in kind["settings"]


@pytest.mark.parametrize(
    ("option", "setting", "expected"),
    [(1, "3", 1), (0, "3", 3), (0, "", 5), (0, "many", 5)],
)
def test_threads_are_counted_as_tensorflow_does(
    monkeypatch: pytest.MonkeyPatch, option: int, setting: str, expected: int
) -> None:
    threading = device_kind.tf.config.threading
    monkeypatch.setattr(threading, "get_intra_op_parallelism_threads", lambda: option)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(5))
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", setting)
    assert device_kind.num_threads() == expected


def test_each_kind_is_listed_once() -> None:
    (kind,) = device_kinds(["cpu:0", "cpu:1"])
    assert kind["type"] == "CPU"
    assert kind["threads"] == "1"
    kinds = device_kinds(["cpu:0", "tpu:0", "cpu:1", "tpu:0"])
    assert [kind["type"] for kind in kinds] == ["CPU", "TPU"]


def test_hosts_count_if_they_compute_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the updates of weights whose slots are offloaded."""
    workers = {
        task: SimpleNamespace(
            device_kinds={"GPU:0": GPU | {"host's caches": f"{task}"}}
        )
        for task in range(2)
    }
    monkeypatch.setattr(cluster._connection, "descriptions", workers)
    names = ["worker:0/gpu:0", "worker:1/gpu:0"]
    assert device_kinds(names) == [GPU]
    first, second = device_kinds(names, on_hosts=True)
    assert kind_differences([first], [second]) == ["host's caches: 0 before, 1 now"]
    assert kind_differences([GPU], [second]) == []


# Prints the kind of the devices, and a digest of a model's gradients. Arguments are the
# number of cores, and of threads or 0 to let initialize_devices choose.
_PROGRAM = """
import hashlib, json, os, sys
num_cores, num_threads = map(int, sys.argv[1:])
if num_cores:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:num_cores])
import tensorflow as tf
from lingvo_pipe.pipeline.devices.stage_devices import initialize_devices
from lingvo_pipe.pipeline.devices.cluster import device_kinds
devices = initialize_devices(2)
if num_threads:
    tf.config.threading.set_intra_op_parallelism_threads(num_threads)
from tests.pipeline.example_layers import gradients, image_batch, image_cells, pipeline
layer = pipeline(image_cells(), 2, 2)
tensors = tf.nest.flatten(gradients(layer, image_batch(64)).gradients)
with tf.device(devices[0]):
    x = tf.random.stateless_normal([64, 4096], [1, 2])
    tensors.append(tf.matmul(x, x, transpose_b=True))
digest = hashlib.sha256(b"".join(x.numpy() for x in tensors if x is not None))
print(json.dumps([device_kinds(devices), digest.hexdigest()]))
"""


def _kinds_and_bytes(
    num_cores: int = 0, num_threads: int = 0, **settings: str
) -> tuple[Any, str]:
    environment = {k: v for k, v in os.environ.items() if k not in SETTINGS}
    program = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(num_cores), str(num_threads)],
        env={**environment, "PYTHONPATH": os.pathsep.join(sys.path), **settings},
        capture_output=True,
        text=True,
    )
    assert program.returncode == 0, program.stderr
    kinds, digest = json.loads(program.stdout.splitlines()[-1])
    return kinds, digest


ENVIRONMENTS: list[dict[str, Any]] = [
    {},
    {"num_cores": 1},
    {"num_threads": 2},
    {"TF_ENABLE_ONEDNN_OPTS": "0"},
    {"TF_ENABLE_ONEDNN_OPTS": "0", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    {"TF_ENABLE_ONEDNN_OPTS": "0", "ONEDNN_MAX_CPU_ISA": "SSE41"},
]


@pytest.mark.exhaustive
def test_devices_of_one_kind_compute_the_same_bytes() -> None:
    """On any number of cores. Some other kinds compute others."""
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda x: _kinds_and_bytes(**x), ENVIRONMENTS))
    for i, (kinds, digest) in enumerate(results):
        for other_kinds, other_digest in results[:i]:
            assert kinds != other_kinds or digest == other_digest, ENVIRONMENTS[i]
    assert results[0] == results[1], "the number of cores does not matter"
    assert len({digest for _, digest in results}) > 1


def test_logical_devices_of_one_gpu_have_its_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There are more logical devices than physical ones."""
    config = device_kind.tf.config
    monkeypatch.setattr(config, "list_physical_devices", lambda kind: ["T4", "L4"])
    monkeypatch.setattr(
        config.experimental, "get_device_details", lambda gpu: {"device_name": gpu}
    )
    models = [device_kind.gpu_model(index) for index in range(4)]
    assert models == ["T4 None", *["L4 None"] * 3]
    kind = device_kind.local_kind(device_name("gpu:1"), 1)
    assert kind["model"] == "L4 None"
    assert kind["host's caches"] == device_kind.local_kind(HERE, 1)["caches"]
