"""The devices of this machine, as the planner knows devices: their figures measured.

Pipelines of cells that hardly compute are run, with small and with large messages; what
they take is what operations and messages cost.

Shapes: B rows of D channels.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import fmean, median
from typing import NamedTuple

import tensorflow as tf
from tensorflow.python.client import device_lib

from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.forward_context import ForwardContext
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.devices.device_names import device_name
from lingvo_pipe.pipeline.devices.stage_devices import must_compile
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.pipeline.simulation.fitted_costs import fitted_costs
from lingvo_pipe.planner.available_memory import available_memory
from lingvo_pipe.planner.device_model import MEASURED, DeviceModel
from lingvo_pipe.training.step_profile import measured_timeline

_DIM = 64  # D.
_SMALL, _LARGE = 1, 8192  # Rows of a message: 256 bytes, 2 MiB.
_NUM_MICRO_BATCHES = 16
_NUM_STEPS = 7
_UNKNOWN = 1 << 60
_UPDATED = 1 << 24  # Bytes of a variable that is updated.


class _Pipeline(NamedTuple):
    overhead: float
    message: float


def calibrated_device(devices: Sequence[str]) -> DeviceModel:
    """Measures devices that are alike.

    Args:
        devices: full names, as from `initialize_devices`.
    """
    small = _measure(devices, _SMALL)
    bandwidth, latency = float("inf"), 0.0
    if len(devices) > 1:
        large = _measure(devices, _LARGE)
        num_bytes = (_LARGE - _SMALL) * _DIM * tf.float32.size
        bandwidth = num_bytes / max(large.message - small.message, 1e-9)
        latency = max(small.message, 0.0)  # By a fit, which noise may turn.
    return DeviceModel(
        name=MEASURED,
        memory=_memory(devices),
        reserved=0,
        flops={},
        memory_bandwidth=_update_bandwidth(devices[0]),
        link_bandwidth=bandwidth,
        link_seconds=latency,
        operation_seconds=small.overhead,
        has_replicas=not must_compile(devices[0]),
        shares_memory=knows_memory(devices) and _is_cpu(devices[0]),
    )


def _measure(devices: Sequence[str], num_rows: int) -> _Pipeline:
    """Of a pipeline on the first two devices, medians over its steps."""
    used = devices[:2]
    layer = PipeliningLayer.Params().Set(
        name="calibration",
        cell_tpl=[FCLayer.Params().Set(input_dim=_DIM, output_dim=_DIM) for _ in used],
        splits=len(used),
        num_micro_batches=_NUM_MICRO_BATCHES,
        devices=list(used),
    )
    pipeline = layer.Instantiate()
    step = tf.function(_step, autograph=False)
    with tf.device(used[0]):
        rows = tf.zeros([num_rows * _NUM_MICRO_BATCHES, _DIM])
    step(pipeline, rows)
    steps = []
    for _ in range(_NUM_STEPS):
        times = [own.numpy() for own in step(pipeline, rows)]
        steps.append(fitted_costs(measured_timeline(pipeline.schedule, times)))
    messages = [
        x
        for costs in steps
        for x in (costs.stages[0].send_forward, costs.stages[-1].send_backward)
    ]
    return _Pipeline(median(costs.overhead for costs in steps), fmean(messages))


def _step(pipeline: PipeliningLayer, rows: tf.Tensor) -> list[tf.Tensor]:
    with ForwardContext(step=tf.constant(0, tf.int64)):
        result = pipeline.ComputeGradients(pipeline.theta, [rows], rows, _loss)
    return list(result.times)


def _loss(outputs: tf.Tensor, targets: tf.Tensor) -> NestedMap:
    return NestedMap(loss=(tf.reduce_mean(outputs[:1] * targets[:1]), 1.0))


def _update_bandwidth(device: str) -> float:
    """Bytes a second that an update reads and writes."""
    with tf.device(device):
        variable = tf.Variable(tf.zeros([_UPDATED // tf.float32.size]))
        change = tf.ones_like(variable)
    seconds = []
    for _ in range(_NUM_STEPS):
        before = time.perf_counter()
        variable.assign_add(change)
        _ = variable[0].numpy()
        seconds.append(time.perf_counter() - before)
    return 3 * _UPDATED / median(seconds)


def knows_memory(devices: Sequence[str]) -> bool:
    """Whether it is known what devices hold; of workers' devices it is not."""
    return all(device_name(each).worker is None for each in devices)


def _is_cpu(device: str) -> bool:
    return device_name(device).kind == "CPU"


def _memory(devices: Sequence[str]) -> int:
    """Bytes of a device; those of a machine's CPU share its memory.

    Where it is not known nothing is limited.
    """
    if not knows_memory(devices):
        return _UNKNOWN
    if _is_cpu(devices[0]):
        return available_memory() // len(devices)
    name = device_name(devices[0])
    local = {each.name: each.memory_limit for each in device_lib.list_local_devices()}
    return int(local[f"/device:{name.kind}:{name.index}"])
