"""Peak memory use of this process's devices."""

from collections.abc import Iterable, Sequence

import tensorflow as tf

from lingvo_pipe.core.tensorflow_startup import counts_cpu_memory
from lingvo_pipe.pipeline.devices.device_names import device_name
from lingvo_pipe.pipeline.memory.workspace import num_bytes
from lingvo_pipe.training.profiling.step_profile import MemoryPeak


class MemoryWatch:
    """A watch on the memory of this process's devices. All CPUs count as one device."""

    def __init__(self, devices: Sequence[str], variables: Iterable[tf.Variable]):
        self._local = _local_devices(devices)
        held = list(variables)
        self._variable_bytes = {
            name: num_bytes(
                v for v in held if v.device in {devices[i] for i in indices}
            )
            for name, indices in self._local.items()
        }
        self._before: dict[str, int] = {}

    def peaks(self) -> list[MemoryPeak]:
        """Returns the peak use of each memory of this process since the last call.

        A peak is the largest growth of memory since that call, plus the bytes of the
        variables. The first call returns an empty list.
        """
        peaks = []
        for name, indices in self._local.items():
            info = tf.config.experimental.get_memory_info(name)
            if name in self._before:
                used = info["peak"] - self._before[name] + self._variable_bytes[name]
                peaks.append(MemoryPeak(indices, used))
            tf.config.experimental.reset_memory_stats(name)
            self._before[name] = info["current"]
        return peaks


def _local_devices(devices: Sequence[str]) -> dict[str, list[int]]:
    """Returns the indices of this process's devices by the memory that they share."""
    indices_by_name: dict[str, list[int]] = {}
    for i, full in enumerate(devices):
        name = device_name(full)
        is_cpu, is_gpu = name.kind == "CPU", name.kind == "GPU"
        if name.worker is None and (is_gpu or (is_cpu and counts_cpu_memory())):
            shared = "CPU:0" if is_cpu else f"GPU:{name.index}"
            indices_by_name.setdefault(shared, []).append(i)
    return indices_by_name
