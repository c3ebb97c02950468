"""An accumulator belongs to one run and one weight, and is wide enough."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.loops.packed_phases import finish_accumulation
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from tests.pipeline.example_layers import gradients, pipeline, state_batch
from tests.support.cases import exhaustive


def _layer() -> PipeliningLayer:
    dense = FCLayer.Params().Set(input_dim=6, output_dim=6)
    return pipeline([dense, dense.Copy(), dense.Copy().Set(output_dim=3)], 2, 4)


def _by_pipeline(layer: PipeliningLayer, seed: int) -> Any:
    (x, _), targets = state_batch(8, seed)
    return gradients(layer, ([x], targets))


def _by_tape(layer: PipeliningLayer, seed: int) -> Any:
    """Runs with a tape around FProp, whose accumulators are not divided."""
    (x, _), _ = state_batch(8, seed)
    with ForwardContext(), tf.GradientTape() as tape:
        goal = tf.reduce_sum(layer.FProp(layer.vars, x) ** 2)
    return tape.gradient(goal, tf.nest.flatten(layer.vars))


def _arrays(structure: Any) -> list[np.ndarray]:
    return [x.numpy().copy() for x in tf.nest.flatten(structure) if x is not None]


def test_a_total_of_16_bits_is_divided_by_a_weight_that_has_more() -> None:
    """80,000 is infinite in float16; the gradient must not become 0."""
    total = tf.constant([40_000.0, 8.0], tf.float16)
    mean = finish_accumulation(total, tf.constant(80_000.0), tf.float16)
    np.testing.assert_array_equal(mean, np.array([0.5, 1e-4], np.float16))


class CountingRowsLayer(BaseLayer):
    """Counts its rows in 16 bits."""

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.RegisterAccumulator("rows", [], tf.bfloat16)

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        self.Accumulate("rows", tf.constant(x.shape[0]))
        return x


@pytest.mark.parametrize("num_batch_shards", [1, 2])
def test_accumulators_of_16_bits_are_summed_in_32(num_batch_shards: int) -> None:
    """In bfloat16 256 + 1 is 256."""
    shards = {"num_batch_shards": num_batch_shards}
    layer = pipeline([CountingRowsLayer.Params()], 1, 512, **shards)
    with ForwardContext() as context:
        layer.FProp(layer.theta, tf.ones([512, 1]))
    (rows,) = context.accumulated.values()
    assert rows.dtype == tf.bfloat16
    assert float(rows) == 512


@pytest.mark.parametrize("run", [exhaustive(_by_pipeline), _by_tape])
def test_what_a_run_returned_stays_as_it_is(run: Any) -> None:
    layer = _layer()
    first = run(layer, 0)
    want = _arrays(first)
    other = run(layer, 1)
    for got, value in zip(_arrays(first), want, strict=True):
        np.testing.assert_array_equal(got, value)
    assert any((a != b).any() for a, b in zip(_arrays(other), want, strict=True))


@pytest.mark.exhaustive
@pytest.mark.parametrize("run", [_by_pipeline, _by_tape])
def test_two_runs_in_a_step_return_what_they_do_alone(run: Any) -> None:
    layer = _layer()
    in_one = tf.function(lambda: [run(layer, seed) for seed in (0, 1)])()
    for seed, got in enumerate(in_one):
        for a, b in zip(_arrays(got), _arrays(run(layer, seed)), strict=True):
            np.testing.assert_array_equal(a, b)
