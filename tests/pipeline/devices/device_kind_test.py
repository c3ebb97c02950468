"""The kind of a device decides on the bytes of results, and nothing else does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lingvo_pipe.pipeline.devices.device_kind import SETTINGS, differences

CPU = {"TensorFlow": "2", "instruction sets": "avx avx2", "settings": ""}


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ([CPU], [CPU], []),
        ([CPU, {"type": "TPU"}], [{"type": "TPU"}, CPU], []),
        (
            [CPU],
            [CPU | {"instruction sets": "avx avx512f", "TensorFlow": "3"}],
            [
                "TensorFlow: 2 before, 3 now",
                "instruction sets: avx2 before, avx512f now",
            ],
        ),
        (
            [CPU | {"settings": "A=1 B=2"}],
            [CPU | {"settings": "B=2"}],
            ["settings: A=1 before, none now"],
        ),
        ([CPU], [CPU | {"threads": "1"}], ["threads: none before, 1 now"]),
        # Either kind has words of the other two.
        (
            [{"a": "1", "b": "1"}, {"a": "2", "b": "2"}],
            [{"a": "1", "b": "2"}, {"a": "2", "b": "1"}],
            ["2 kinds of devices before, 2 now"],
        ),
    ],
)
def test_differences_are_named(
    before: list[dict[str, str]], now: list[dict[str, str]], expected: list[str]
) -> None:
    assert differences(before, now) == expected


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
found = b"".join(x.numpy().tobytes() for x in tensors if x is not None)
print(json.dumps([device_kinds(devices), hashlib.sha256(found).hexdigest()]))
"""


def _kinds_and_bytes(
    num_cores: int = 0, num_threads: int = 0, **settings: str
) -> tuple[Any, str]:
    environment = {k: v for k, v in os.environ.items() if k not in SETTINGS}
    output = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(num_cores), str(num_threads)],
        env={**environment, "PYTHONPATH": os.pathsep.join(sys.path), **settings},
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ).stdout
    kinds, found = json.loads(output.splitlines()[-1])
    return kinds, found


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
    for i, (kind, found) in enumerate(results):
        for other_kind, other in results[:i]:
            assert kind != other_kind or found == other, ENVIRONMENTS[i]
    assert results[0] == results[1], "the number of cores does not matter"
    assert len({found for _, found in results}) > 2
