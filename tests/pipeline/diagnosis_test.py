"""Errors of operations, and which of them a second run may tell more about."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.forward_context import ForwardContext
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.diagnosis import may_be_diagnosed
from tests.pipeline.example_layers import loss_fn, pipeline, raw_values, state_batch

OF_MACHINES = {"ResourceExhausted", "Unavailable", "Aborted", "DeadlineExceeded"}


def test_all_but_the_errors_of_machines_may_be_diagnosed() -> None:
    kinds: list[Any] = [
        kind
        for _, kind in inspect.getmembers(tf.errors, inspect.isclass)
        if issubclass(kind, tf.errors.OpError) and kind is not tf.errors.OpError
    ]
    found = {
        kind.__name__.removesuffix("Error"): may_be_diagnosed(kind(None, None, "odd"))
        for kind in kinds
    }
    assert {name for name, yes in found.items() if not yes} == OF_MACHINES
    assert found.keys() >= {"Internal", "OutOfRange", "Unimplemented", "Cancelled"}


class UnsupportedLayer(BaseLayer):
    """An operation that TensorFlow has in its books but not in its kernels."""

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        patches = tf.image.extract_patches(
            tf.reshape(tf.stop_gradient(x), [-1, 2, 3, 1]),
            sizes=[2, 1, 1, 1],
            strides=[1, 1, 1, 1],
            rates=[1, 1, 1, 1],
            padding="SAME",
        )
        return x + tf.reduce_sum(patches)


def test_an_operation_that_is_not_implemented_is_found() -> None:
    dense = FCLayer.Params().Set(input_dim=6, output_dim=6)
    layer = pipeline([dense, UnsupportedLayer.Params(), dense.Copy()], [1, 3], 2)
    (x, _), targets = state_batch(4)
    theta, step = raw_values(layer), tf.constant(0, tf.int64)
    with ForwardContext(step=step), pytest.raises(tf.errors.OpError) as failed:
        layer.ComputeGradients(theta, [x], targets, loss_fn)
    assert may_be_diagnosed(failed.value)
    words = re.escape("In the forward pass of pipe/cells_1 (stage 1), micro-batch 0: ")
    with (
        ForwardContext(step=step),
        pytest.raises(tf.errors.UnimplementedError, match=words),
    ):
        layer.Diagnose(theta, [x], targets, loss_fn)
