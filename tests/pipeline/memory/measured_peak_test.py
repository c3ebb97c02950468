"""PeakBytes against the peak that TensorFlow's allocator counts."""

from statistics import median

import pytest
import tensorflow as tf

from lingvo_pipe.core.tensorflow_startup import count_cpu_memory
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.devices import stage_devices  # noqa: F401  Asks for several.
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.training.profiling.memory_peaks import MemoryWatch

# TensorFlow chooses its allocator when it makes the first tensor. Its default counts
# memory only on some processors.
count_cpu_memory()

WIDTH, ROWS, M, NUM_STEPS = 512, 2048, 4, 9


def exponents(outputs: tf.Tensor, targets: NestedMap) -> NestedMap:
    return NestedMap(loss=(tf.reduce_mean(tf.exp(outputs)), tf.constant(1.0)))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("schedule", "recompute", "offload"),
    [("gpipe", "never", None), ("1f1b", "always", None), ("gpipe", "never", "always")],
)
def test_the_allocator_holds_what_is_predicted(
    schedule: str, recompute: str, offload: str | None
) -> None:
    """Tensors of one size leave no gaps. The prediction allows for some.

    A CPU device has its host's memory, so offload saves nothing there.
    """
    cell = FCLayer.Params().Set(input_dim=WIDTH, output_dim=WIDTH, activation="TANH")
    p = PipeliningLayer.Params().Set(
        name="pipe",
        cell_tpl=[cell.Copy() for _ in range(4)],
        splits=1,
        num_micro_batches=M,
        schedule=schedule,
        recompute=recompute,
        offload=offload,
        devices=["cpu:0"],
    )
    layer = p.Instantiate()
    arguments = [tf.ones([ROWS * M, WIDTH])], NestedMap(), exponents
    (predicted,) = layer.PeakBytes(*arguments)

    @tf.function
    def gradients() -> NestedMap:
        with ForwardContext(step=tf.constant(0, tf.int64)):
            return layer.ComputeGradients(layer.theta, *arguments)

    gradients()
    watch = MemoryWatch(layer.devices, layer.VariablePaths().values())
    watch.peaks()
    peaks = []
    for _ in range(NUM_STEPS):  # Threads free tensors sooner or later by chance.
        gradients()
        (peak,) = watch.peaks()
        peaks.append(peak.num_bytes)
    assert 0.98 * median(peaks) <= predicted <= 1.15 * max(peaks)
