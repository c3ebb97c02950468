"""The weights that no loss reaches are found: their gradients are all 0."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.weights import WeightParams
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.nested_map import NestedMap
from tests.pipeline.example_layers import (
    gradients,
    image_batch,
    image_cells,
    pipeline,
    state_batch,
    state_cells,
)
from tests.support.cases import exhaustive


class WeighingLayer(BaseLayer):
    """A dense layer with `b`, and `how` it and its inputs are used."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("how", "both", "What the output depends on.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.CreateVariable("w", WeightParams([3, 3]))
        self.CreateVariable("b", WeightParams([3]))

    def FProp(self, theta: NestedMap, x: tf.Tensor, *skipped: tf.Tensor) -> Any:
        how = self.params.how
        if how == "stopped":
            x = tf.stop_gradient(x)
        y = tf.matmul(x, theta.w)
        if how == "unused b":
            return y
        if how == "two outputs":
            return y, x * theta.b
        if how == "side loss":
            self.AddLoss("size", tf.reduce_sum(x * theta.b, axis=-1))
            return tf.stop_gradient(y)
        return y + theta.b


def _found(hows: list[str], warnings: pytest.LogCaptureFixture) -> list[str]:
    """Returns the weights in the warning, after a check that only theirs are 0."""
    cells = [WeighingLayer.Params().Set(how=how) for how in hows]
    layer = pipeline(cells, 2, 2)
    _, targets = state_batch(4)
    x = 1.0 + tf.random.stateless_normal([4, 3], [1, 2])
    result = gradients(layer, ([x], targets))
    zero = [
        variable.name.removesuffix(":0")
        for variable, gradient in zip(
            tf.nest.flatten(layer.vars), tf.nest.flatten(result.gradients), strict=True
        )
        if not np.any(gradient)
    ]
    messages = warnings.messages
    assert len(messages) == bool(zero)
    assert all(path in message for message in messages for path in zero)
    return sorted(path.removeprefix("pipe/cells_") for path in zero)


@pytest.mark.parametrize(
    ("hows", "want"),
    [
        exhaustive(["both", "both", "both"], []),
        # The second output of the third cell is used by no one.
        (["both", "unused b", "two outputs", "both"], ["1/b", "2/b"]),
        (["both", "both", "stopped"], ["0/b", "0/w", "1/b", "1/w"]),
        exhaustive(["stopped", "both", "both"], []),
        (["both", "side loss", "both"], ["1/w"]),
    ],
)
def test_weights_whose_gradients_are_0_are_named(
    hows: list[str], want: list[str], warnings: pytest.LogCaptureFixture
) -> None:
    assert _found(hows, warnings) == want


@pytest.mark.exhaustive
def test_models_that_use_all_weights_get_no_warning(
    warnings: pytest.LogCaptureFixture,
) -> None:
    gradients(pipeline(image_cells(), 2, 2), image_batch(4))
    gradients(pipeline(state_cells(), 3, 2), state_batch(4))
    assert not warnings.messages


def test_a_weight_in_two_places_is_used_if_it_is_in_one(
    warnings: pytest.LogCaptureFixture,
) -> None:
    cells = [WeighingLayer.Params().Set(how=how) for how in ("both", "unused b")]
    layer = pipeline(cells, 2, 2, tied={"cells_1/b": "cells_0/b"})
    _, targets = state_batch(4)
    gradients(layer, ([tf.ones([4, 3])], targets))
    assert not warnings.messages


def test_no_more_than_a_few_are_named(warnings: pytest.LogCaptureFixture) -> None:
    cells = [FCLayer.Params().Set(input_dim=3, output_dim=3)] * 4
    cells = [*cells, WeighingLayer.Params().Set(how="stopped")]
    _, targets = state_batch(4)
    gradients(pipeline(cells, 2, 2), ([tf.ones([4, 3])], targets))
    (message,) = warnings.messages
    assert re.search(r"^\D*\bpipe/cells_0/.* 3\b", message)
    assert message.count("pipe/") == 5
