"""Runs of one pipeline in one step do not overlap."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.nested_map import NestedMap
from tests.pipeline.example_layers import gradients, image_batch, image_cells, pipeline
from tests.support.cases import exhaustive

NUM_RUNS = 4


def _batches() -> Any:
    """`NUM_RUNS` mini-batches, stacked."""
    batches = [image_batch(8, seed) for seed in range(NUM_RUNS)]
    return tf.nest.map_structure(lambda *parts: tf.stack(parts), *batches)


def _unrolled(run: Any, batches: Any) -> Any:
    parts = [
        run(tf.nest.map_structure(lambda x, i=i: x[i], batches))
        for i in range(NUM_RUNS)
    ]
    return tf.nest.map_structure(lambda *xs: tf.stack(xs), *parts)


def _looped(run: Any, batches: Any) -> Any:
    """Runs iterations of a loop, several at a time."""
    specs = tf.nest.map_structure(
        lambda x: tf.TensorSpec(x.shape[1:], x.dtype), batches
    )
    signature = tf.nest.map_structure(
        lambda x: tf.TensorSpec(x.shape, x.dtype),
        tf.function(run, autograph=False)
        .get_concrete_function(specs)
        .structured_outputs,
    )
    return tf.map_fn(
        run, batches, fn_output_signature=signature, parallel_iterations=NUM_RUNS
    )


@pytest.mark.parametrize("schedule", [exhaustive("gpipe"), "1f1b"])
@pytest.mark.parametrize("together", [_unrolled, exhaustive(_looped)])
def test_training_runs_in_one_step_are_those_of_steps_of_their_own(
    together: Any, schedule: str
) -> None:
    """To the bit, again and again."""
    cells = image_cells(num_convolutions=1)
    layer = pipeline(cells, 2, 4, schedule=schedule)

    def run(batch: Any) -> NestedMap:
        result = gradients(layer, batch)
        found = [x for x in tf.nest.flatten(result.gradients) if x is not None]
        return NestedMap(gradients=found, metrics=result.metrics)

    batches = _batches()
    want = _unrolled(run, batches)
    step = tf.function(lambda: together(run, batches), autograph=False)
    for _ in range(3):
        got = step()
        for a, b in zip(tf.nest.flatten(got), tf.nest.flatten(want), strict=True):
            np.testing.assert_array_equal(a, b)
