"""Measurements of devices, of sends between them, and of training steps."""

import platform
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.pipeline.devices.device_kind import (
    CPU_INFO,
    DRIVER,
    first_line,
    gpu_model,
)
from lingvo_pipe.pipeline.devices.device_names import (
    DeviceName,
    device_name,
    short_name,
)
from lingvo_pipe.pipeline.devices.stage_devices import disable_graph_optimizer
from lingvo_pipe.planner.measured.calibration import calibrated_device, knows_memory
from lingvo_pipe.tools.doctor.model import Configuration, pipelined_step, plain_step
from lingvo_pipe.version import VERSION

_UNLIMITED = 1 << 50
_LOSS_TOLERANCE = 1e-3


def versions() -> dict[str, str]:
    """Returns the versions of the software that this process runs on, by name."""
    build = tf.sysconfig.get_build_info()
    versions_by_name = {
        "lingvo_pipe": VERSION,
        "tensorflow": tf.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cuda": build.get("cuda_version"),
        "cudnn": build.get("cudnn_version"),
        "nvidia driver": first_line(DRIVER, "NVRM version:"),
    }
    return {name: str(value) for name, value in versions_by_name.items() if value}


def device_row(device: str) -> dict[str, Any]:
    """Returns a device's model, its memory, and the planner's measurements of it."""
    measured, name = calibrated_device([device]), device_name(device)
    # If a GPU has several logical devices, only the first one's memory is known.
    is_known = knows_memory([device]) and measured.memory < _UNLIMITED
    on_host = measured.host_bandwidth
    return {
        "device": name.short,
        "model": _model(name),
        "memory_gib": measured.memory / 2**30 if is_known else None,
        "operation_us": measured.operation_seconds * 1e6,
        "update_gb_per_s": measured.memory_bandwidth / 1e9,
        "host_gb_per_s": on_host and on_host / 1e9,
    }


def link_row(first: str, second: str) -> dict[str, Any]:
    """Returns the latency and the bandwidth of messages between two devices."""
    measured = calibrated_device([first, second])
    return {
        "between": f"{short_name(first)} and {short_name(second)}",
        "latency_us": measured.link_seconds * 1e6,
        "gb_per_s": measured.link_bandwidth / 1e9,
    }


def step_rows(devices: Sequence[str], num_rounds: int) -> list[dict[str, Any]]:
    """Times steps of plain TensorFlow, and of pipelines on one and on all devices.

    Raises:
        ValueError: if the losses of the steps differ.
    """
    num_layers = max(8, len(devices))
    way = Configuration(num_layers, 256, 32, 64, 8, "1f1b", "never")
    steps = {"plain tf.function": plain_step(way, devices[0])}
    for number in dict.fromkeys((1, len(devices))):
        layer = way.pipeline(devices[:number])
        steps[f"1f1b, K={number}"] = pipelined_step(layer, way.batch())
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(1 + num_rounds):
        losses = {}
        for name, step in steps.items():
            _optimize_graphs(name.startswith("plain"))
            start = time.perf_counter()
            losses[name] = float(step())
            seconds[name].append(time.perf_counter() - start)
    _optimize_graphs(False)
    plain, *pipelined = losses.values()
    # A loss that is NaN equals none.
    if not all(abs(loss - plain) <= _LOSS_TOLERANCE * plain for loss in pipelined):
        raise UserValueError(path="loss", expected="equal ones", got=losses)
    medians = {name: median(times[1:]) for name, times in seconds.items()}
    base, *_ = medians.values()
    return [
        {"step": name, "seconds": time_of_step, "over_plain": time_of_step / base}
        for name, time_of_step in medians.items()
    ]


def _optimize_graphs(is_on: bool) -> None:
    """Switches TensorFlow's graph optimizer, which pipelines run without, on or off."""
    if is_on:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
    else:
        disable_graph_optimizer()


def _model(name: DeviceName) -> str:
    if name.worker is not None:
        return f"of worker {name.worker}"
    if name.kind == "GPU":
        return gpu_model(name.index)
    return first_line(CPU_INFO, "model name") or platform.machine()
