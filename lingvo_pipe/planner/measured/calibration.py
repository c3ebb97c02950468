"""The calibration of devices: a DeviceModel with measured figures.

Pipelines of tiny cells run with small and with large messages. The times of these
pipelines give the costs of operations and messages.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

import tensorflow as tf
from tensorflow.python.client import device_lib

from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.devices.device_names import device_name
from lingvo_pipe.pipeline.devices.stage_devices import must_compile
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.pipeline.simulation.costs import fitted_costs
from lingvo_pipe.planner.resources.device_model import MEASURED, DeviceModel
from lingvo_pipe.planner.resources.hosts import Hosts, Link
from lingvo_pipe.training.profiling.step_profile import measured_timeline

_DIM = 64
_SMALL, _LARGE = 1, 8192  # Rows of a message: 256 bytes, 2 MiB.
_NUM_MICRO_BATCHES = 16
_NUM_STEPS = 7
_UNLIMITED = 1 << 60
_UPDATED = 1 << 24  # Bytes of a variable that is updated.
_KIB = 1024
# For cgroups 2 and 1: the limit's file, the usage's file, and the name of reclaimable
# memory in the statistics.
_CGROUPS = {
    "memory.max": ("memory.current", "inactive_file"),
    "memory/memory.limit_in_bytes": ("memory.usage_in_bytes", "total_inactive_file"),
}


class Figures(NamedTuple):
    """Measured times and bandwidths of devices. Bandwidths are in bytes per second."""

    operation_seconds: float
    link_seconds: float
    link_bandwidth: float
    memory_bandwidth: float
    host_bandwidth: float | None = None  # None if a device offloads nothing.


def calibrated_device(devices: Sequence[str]) -> DeviceModel:
    """Returns a newly measured model of devices of one kind, given by full names."""
    return device_of(devices, measured_figures(devices), measured_hosts(devices))


def measured_figures(devices: Sequence[str]) -> Figures:
    """Measures the first device, and the link to the second one if there is one."""
    overhead, small = _measure(devices, _SMALL)
    link = _measured_link(devices, small)
    bandwidth = _update_bandwidth(devices[0])
    on_host = _host_bandwidth(devices[0])
    return Figures(overhead, link.latency, link.bandwidth, bandwidth, on_host)


def measured_hosts(devices: Sequence[str]) -> Hosts | None:
    """Returns the workers as hosts, with the measured link between two of them.

    Returns None if there is one worker, if workers have different numbers of devices,
    or if each has only one. The devices are listed worker by worker. All messages that
    leave a worker share the measured bandwidth.
    """
    names = map(device_name, devices)
    workers = itertools.groupby(names, key=lambda name: name.worker)
    per_host, *other_counts = [len([*group]) for _, group in workers]
    if per_host == 1 or not other_counts or {*other_counts} != {per_host}:
        return None
    pair = [devices[0], devices[per_host]]
    _, small = _measure(pair, _SMALL)
    link = _measured_link(pair, small)
    return Hosts(per_host, link, link.bandwidth)


def device_of(
    devices: Sequence[str], figures: Figures, hosts: Hosts | None = None
) -> DeviceModel:
    """Returns the model of devices with these figures and the memory free now."""
    return DeviceModel(
        name=MEASURED,
        memory=_memory(devices),
        reserved=0,
        flops={},
        has_replicas=not must_compile(devices[0]),
        shares_memory=knows_memory(devices) and device_name(devices[0]).kind == "CPU",
        hosts=hosts,
        **figures._asdict(),
    )


def knows_memory(devices: Sequence[str]) -> bool:
    """Returns whether the devices' memory is known, which it is not on workers."""
    return all(device_name(device).worker is None for device in devices)


def available_memory(root: Path = Path("/")) -> int:
    """Returns the bytes that this program can still allocate.

    Both the machine and a container limit memory. File caches count as free. `root` is
    the folder that contains `proc` and `sys`.
    """
    limits = [_read_numbers(root / "proc/meminfo")["MemAvailable"] * _KIB]
    for limit_file, (used_file, reclaimable_name) in _CGROUPS.items():
        path = root / "sys/fs/cgroup" / limit_file
        if (limit := _read_text(path)) not in ("", "max"):
            used = int(_read_text(path.with_name(used_file)) or 0)
            statistics = _read_numbers(path.with_name("memory.stat"))
            used -= statistics.get(reclaimable_name, 0)
            limits.append(max(int(limit) - max(used, 0), 0))
    return min(limits)


def _read_numbers(path: Path) -> dict[str, int]:
    """Returns the numbers of a file with lines such as `MemTotal: 16 kB`."""
    rows = (line.split() for line in _read_text(path).splitlines())
    return {name.rstrip(":"): int(number) for name, number, *_ in rows}


def _read_text(path: Path) -> str:
    return path.read_text().strip() if path.is_file() else ""


def _measure(devices: Sequence[str], num_rows: int) -> tuple[float, float]:
    """Returns the overhead of an operation and the time to send rows, in seconds."""
    used = devices[:2]
    layer = PipeliningLayer.Params().Set(
        name="calibration",
        cell_tpl=[FCLayer.Params().Set(input_dim=_DIM, output_dim=_DIM) for _ in used],
        splits=len(used),
        num_micro_batches=_NUM_MICRO_BATCHES,
        devices=list(used),
    )
    pipeline = layer.Instantiate()

    @tf.function(autograph=False)
    def step(rows: tf.Tensor) -> list[tf.Tensor]:
        with ForwardContext(step=tf.constant(0, tf.int64)):
            result = pipeline.ComputeGradients(pipeline.theta, [rows], rows, _loss)
        return list(result.times)

    with tf.device(used[0]):
        rows = tf.zeros([num_rows * _NUM_MICRO_BATCHES, _DIM])
    step(rows)
    steps = []
    for _ in range(_NUM_STEPS):
        times = [tensor.numpy() for tensor in step(rows)]
        steps.append(fitted_costs(measured_timeline(pipeline.schedule, times)))
    forward = [costs.stages[0].send_forward for costs in steps]
    backward = [costs.stages[-1].send_backward for costs in steps]
    return median(costs.overhead for costs in steps), fmean([*forward, *backward])


def _measured_link(devices: Sequence[str], small: float) -> Link:
    """Returns the link between the first two devices. A single device sends nothing.

    `small` is the fitted time of a small message. Noise may make it negative.
    """
    if len(devices) == 1:
        return Link(float("inf"), 0.0)
    _, large = _measure(devices, _LARGE)
    num_bytes = (_LARGE - _SMALL) * _DIM * tf.float32.size
    return Link(num_bytes / max(large - small, 1e-9), max(small, 0.0))


def _loss(outputs: tf.Tensor, targets: tf.Tensor) -> NestedMap:
    return NestedMap(loss=(tf.reduce_mean(outputs[:1] * targets[:1]), 1.0))


def _update_bandwidth(device: str) -> float:
    """Returns the bytes per second that a device reads and writes in an update."""
    with tf.device(device):
        variable = tf.Variable(tf.zeros([_UPDATED // tf.float32.size]))
        change = tf.ones_like(variable)

    seconds = []
    for _ in range(_NUM_STEPS):
        start = time.perf_counter()
        variable.assign_add(change)
        variable[0].numpy()  # Waits for the update.
        seconds.append(time.perf_counter() - start)
    return 3 * _UPDATED / median(seconds)


def _host_bandwidth(device: str) -> float | None:
    """Returns the slower direction's bytes per second between a device and its host.

    Returns None for a CPU device, whose memory is its host's, and for a TPU.
    """
    name = device_name(device)
    if name.has_host_memory or must_compile(device):
        return None
    with tf.device(device):
        tensor = tf.zeros([_UPDATED // tf.float32.size])
    seconds = []
    for _ in range(_NUM_STEPS):
        for place in (name.host.full, device):
            start = time.perf_counter()
            with tf.device(place):
                tensor = tf.identity(tensor)
            tensor[:1].numpy()  # Waits for the copy.
            seconds.append(time.perf_counter() - start)
    return _UPDATED / max(median(seconds[::2]), median(seconds[1::2]))


def _memory(devices: Sequence[str]) -> int:
    """Returns a device's bytes of memory, or `_UNLIMITED` if they are not known.

    CPU devices have equal shares of the machine's memory. If a GPU is split into
    logical devices, only the first one's memory is known.
    """
    if not knows_memory(devices):
        return _UNLIMITED
    name = device_name(devices[0])
    if name.kind == "CPU":
        return available_memory() // len(devices)
    limits = {x.name: x.memory_limit for x in device_lib.list_local_devices()}
    return int(limits.get(f"/device:{name.kind}:{name.index}", _UNLIMITED))
