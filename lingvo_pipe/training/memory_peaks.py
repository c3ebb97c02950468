"""The most memory that devices of this process have taken at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import tensorflow as tf

from lingvo_pipe.pipeline.devices.device_names import DeviceName, device_name
from lingvo_pipe.pipeline.peak_memory import num_bytes
from lingvo_pipe.training.counting_allocator import counts_cpu_memory
from lingvo_pipe.training.planned_step import MemoryPeak


class MemoryWatch:
    """Looks at the memory of devices of this process, as far as it is counted.

    CPU devices share the machine's memory, and are looked at together.

    Args:
        devices: full names; those of other processes are left out.
        variables: what of all that was there before counts.
    """

    def __init__(self, devices: Sequence[str], variables: Iterable[tf.Variable]):
        self._local = _local(devices)
        held = [(v.device, num_bytes([_spec_of(v)])) for v in variables]
        self._held = {
            name: sum(size for at, size in held if at in {devices[i] for i in places})
            for name, places in self._local.items()
        }
        self._before: dict[str, int] = {}

    def peaks(self) -> list[MemoryPeak]:
        """The most that was taken at a time since the last look; the first finds none.

        Batches that wait, and all else that was there before, does not count.
        """
        found = []
        for name, places in self._local.items():
            info = tf.config.experimental.get_memory_info(name)
            if name in self._before:
                taken = info["peak"] - self._before[name] + self._held[name]
                found.append(MemoryPeak(places, taken))
            tf.config.experimental.reset_memory_stats(name)
            self._before[name] = info["current"]
        return found


def _spec_of(variable: tf.Variable) -> tf.TensorSpec:
    return tf.TensorSpec(variable.shape, variable.dtype)


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
