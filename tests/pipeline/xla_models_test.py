"""Random models that XLA compiles leave the same bytes, also for ragged mini-batches.

XLA once rounded a forward pass without residuals otherwise than one with them. Then
recomputed residuals did not belong to the outputs that the next layer had read.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core import forward_context
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.weights import WeightInit, WeightParams
from lingvo_pipe.layers.dropout import DropoutLayer
from lingvo_pipe.nested_map import NestedMap
from tests.pipeline.example_layers import gradients, pipeline
from tests.support.cases import seeds

_NUM_SEEDS = 30
_FAST = (26,)  # This model once differed.


def _normalized(y: tf.Tensor) -> tf.Tensor:
    mean, variance = tf.nn.moments(y, [-1], keepdims=True)
    return (y - mean) * tf.math.rsqrt(variance + 1e-3)


# What follows a product: chains that XLA fuses.
_FUNCTIONS: dict[str, Callable[[tf.Tensor, tf.Tensor], tf.Tensor]] = {
    "gelu and sine": lambda x, y: tf.nn.gelu(y) + tf.sin(y),
    "norm": lambda x, y: _normalized(y),
    "softmax": lambda x, y: tf.nn.softmax(y) * y,
    "tanh": lambda x, y: tf.tanh(y),
    "residual": lambda x, y: x + tf.nn.silu(_normalized(y)) * 0.5,
    "logarithm": lambda x, y: tf.math.log1p(tf.exp(y)) / (1.0 + tf.abs(x)),
}
_SCHEDULES = ("gpipe", "1f1b", "zero_bubble")
_RECOMPUTED = ("always", "except_last")


class _Fused(BaseLayer):
    """A product, and a function of `_FUNCTIONS`."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("dim", 0, "The number of channels.")
        p.Define("function", "tanh", "A name of `_FUNCTIONS`.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        dim = self.params.dim
        weight = WeightParams([dim, dim], WeightInit.Gaussian(0.4))
        self.CreateVariable("w", weight)

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        return _FUNCTIONS[self.params.function](x, tf.matmul(x, theta.w))


def _loss(outputs: tf.Tensor, targets: tf.Tensor) -> NestedMap:
    squares = tf.reduce_mean((outputs - targets) ** 2, -1, keepdims=True)
    weights = forward_context.current_context().row_weights(squares)
    weights = tf.ones_like(squares) if weights is None else weights
    total = tf.reduce_sum(weights)
    return NestedMap(loss=(tf.reduce_sum(squares * weights) / total, total))


def _trained(
    cells: Sequence[InstantiableParams], batch: Any, *arguments: Any, **params: Any
) -> list[np.ndarray]:
    options = {"jit_compile": True, "random_seed": 1} | params
    layer = pipeline([*cells], *arguments, **options)
    step = tf.function(lambda: gradients(layer, batch, loss=_loss), autograph=False)
    result = step()
    return [x.numpy() for x in tf.nest.flatten([result.gradients, result.metrics])]


@pytest.mark.parametrize("seed", seeds(_NUM_SEEDS, _FAST))
def test_recomputation_and_stages_leave_the_bytes(seed: int) -> None:
    draw = random.Random(seed)
    names = [*draw.choices([*_FUNCTIONS, "dropout"], k=draw.randint(1, 3)), "norm"]
    draw.shuffle(names)
    dim = draw.choice([6, 16, 64, 96])
    fused = _Fused.Params().Set(dim=dim)
    cells = [
        DropoutLayer.Params().Set(keep_prob=0.8)
        if name == "dropout"
        else fused.Copy().Set(function=name)
        for name in names
    ]
    num_rows, num_micro_batches = draw.choice([(17, 4), (17, 8), (7, 3), (30, 4)])
    numbers = np.random.default_rng(seed).normal(size=[2, num_rows, dim])
    x, targets = tf.constant(numbers, tf.float32)
    batch = [x], targets
    expected = _trained(cells, batch, 1, num_micro_batches, recompute="never")
    gradients_of_stages = _trained(
        cells,
        batch,
        draw.randint(1, min(3, len(cells))),
        num_micro_batches,
        recompute=draw.choice(_RECOMPUTED),
        schedule=draw.choice(_SCHEDULES),
    )
    not_compiled = _trained(cells, batch, 1, num_micro_batches, jit_compile=False)
    for a, b, c in zip(expected, gradients_of_stages, not_compiled, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(a, c, rtol=1e-3, atol=1e-5)
