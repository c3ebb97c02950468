"""Memory peaks are measured as far as TensorFlow counts memory."""

from __future__ import annotations

import pytest
import tensorflow as tf

from lingvo_pipe.core.tensorflow_startup import count_cpu_memory, counts_cpu_memory
from lingvo_pipe.training.profiling import memory_peaks as peaks_module
from lingvo_pipe.training.profiling.memory_peaks import MemoryWatch

MIB = 2**20
HERE = "/job:localhost/replica:0/task:0/device:CPU:"
WORKER = "/job:worker/replica:0/task:1/device:CPU:0"

# TensorFlow chooses its allocator when it makes the first tensor. Its default counts
# memory only on some processors.
count_cpu_memory()


def test_only_counted_memory_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    devices = [f"{HERE}0", f"{HERE}1", WORKER]
    monkeypatch.setattr(peaks_module, "counts_cpu_memory", lambda: False)
    uncounted = MemoryWatch(devices, [])
    assert uncounted.peaks() == uncounted.peaks() == []
    monkeypatch.undo()
    watch = MemoryWatch(devices, [])
    existing = tf.random.uniform([MIB])
    assert watch.peaks() == []
    allocated = tf.random.uniform([2 * MIB])
    (peak,) = watch.peaks()
    assert peak.devices == [0, 1]
    assert allocated.shape[0] * 4 <= peak.num_bytes < 1.5 * allocated.shape[0] * 4
    with tf.device(devices[0]):
        weight = tf.Variable(existing)
    watch = MemoryWatch(devices, [weight])
    watch.peaks()
    (peak,) = watch.peaks()
    assert peak.num_bytes == pytest.approx(existing.shape[0] * 4, rel=0.01)


def test_the_counting_allocator_is_chosen_by_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TF_CPU_ALLOCATOR_USE_BFC", raising=False)
    monkeypatch.setenv("TF_CPU_ALLOCATOR_USE_BFC", "false")
    assert not counts_cpu_memory()
    count_cpu_memory()
    assert counts_cpu_memory()
