"""The most memory that devices of this process have taken at a time."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from lingvo_pipe.pipeline.devices.device_names import DeviceName, device_name
from lingvo_pipe.training.counting_allocator import counts_cpu_memory
from lingvo_pipe.training.planned_step import MemoryPeak


def reset_peaks(devices: Sequence[str]) -> None:
    """Forgets peaks so far.

    Args:
        devices: full names; those of other processes have none here.
    """
    for name in _local(devices):
        tf.config.experimental.reset_memory_stats(name)


def memory_peaks(devices: Sequence[str]) -> list[MemoryPeak]:
    """Peaks since `reset_peaks`, of devices of this process whose memory is counted.

    Its CPU devices share the machine's memory, and have one together.
    """
    return [
        MemoryPeak(places, tf.config.experimental.get_memory_info(name)["peak"])
        for name, places in _local(devices).items()
    ]


def _local(devices: Sequence[str]) -> dict[str, list[int]]:
    """Names of which each has its memory, with the places of those that share it."""
    found: dict[str, list[int]] = {}
    for place, full in enumerate(devices):
        name = device_name(full)
        if _is_counted_here(name):
            shared = "CPU:0" if name.kind == "CPU" else f"{name.kind}:{name.index}"
            found.setdefault(shared, []).append(place)
    return found


def _is_counted_here(name: DeviceName) -> bool:
    if name.worker is not None or name.kind not in ("CPU", "GPU"):
        return False
    return name.kind == "GPU" or counts_cpu_memory()
