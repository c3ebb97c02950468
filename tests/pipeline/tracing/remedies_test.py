"""Errors that tracing brings about say what to do in a layer."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.nested_map import NestedMap
from tests.pipeline.example_layers import pipeline


class FreeLayer(BaseLayer):
    """Computes what it is told to."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("run", None, "A function of the input.")
        return p

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        return self.params.run(x)


def _decides(x: tf.Tensor) -> tf.Tensor:
    return x if tf.reduce_max(x) > 0.0 else -x


def _iterates(x: tf.Tensor) -> tf.Tensor:
    return sum(part for part in x)


def _asks(x: tf.Tensor) -> tf.Tensor:
    return x * x.numpy().max()


def _counts(x: tf.Tensor) -> tf.Tensor:
    return x * np.max(x)


def _converts(x: tf.Tensor) -> tf.Tensor:
    return x * float(tf.reduce_max(x))


@pytest.mark.parametrize("run", [_decides, _iterates, _asks, _counts, _converts])
def test_a_tensor_has_no_value_in_fprop(run: Any) -> None:
    named = r"^FProp\b.*\bFreeLayer\b.*\bpipe/cells_0 .*stage 0\b.*\btf\.cond\b"
    with pytest.raises(Exception, match=named) as found:
        pipeline([FreeLayer.Params().Set(run=run)], 1, 1)(tf.ones([2, 3]))
    assert "AutoGraph" not in str(found.value)


def _variable() -> Any:
    variable = tf.Variable(2.0)
    return lambda x: x * variable


def _new_variable() -> Any:
    return lambda x: x * tf.Variable(2.0)


def _variable_of_the_input() -> Any:
    return lambda x: x * tf.Variable(tf.reduce_sum(x))


def _keras_layer() -> Any:
    return keras.layers.Dense(3)


def _built_keras_layer() -> Any:
    dense = keras.layers.Dense(3)
    dense.build([2, 3])
    return dense


def _new_keras_layer() -> Any:
    return lambda x: keras.layers.Dense(3)(x)


@pytest.mark.parametrize(
    "make",
    [
        _variable,
        _new_variable,
        _variable_of_the_input,
        _keras_layer,
        _built_keras_layer,
        _new_keras_layer,
    ],
)
def test_a_variable_is_made_in_init_and_comes_by_theta(make: Any) -> None:
    layer = pipeline([FreeLayer.Params().Set(run=make())], 1, 1)
    with pytest.raises(
        ValueError, match=r"\b__init__\b.*\bCreateVariable\b.*\btheta\."
    ):
        layer(tf.ones([2, 3]))


def test_a_keras_layer_without_weights_may_be_used() -> None:
    run = keras.layers.Rescaling(3.0)
    layer = pipeline([FreeLayer.Params().Set(run=run)], 1, 1)
    np.testing.assert_array_equal(layer(tf.ones([2, 3])), 3.0 * np.ones([2, 3]))


def test_another_error_is_left_as_it_is() -> None:
    layer = pipeline([FreeLayer.Params().Set(run=lambda x: x + "a")], 1, 1)
    with pytest.raises(Exception, match=r"\bFreeLayer\b.*\bpipe/cells_0\b") as found:
        layer(tf.ones([2, 3]))
    assert "tf.cond" not in str(found.value)
    assert "CreateVariable" not in str(found.value)


def test_an_fprop_without_return_is_refused() -> None:
    cells = [FreeLayer.Params().Set(run=run) for run in (tf.identity, lambda x: None)]
    for num_stages in (1, 2):
        with pytest.raises(
            ValueError, match=r"\bFreeLayer\b.*\bpipe/cells_1 .* None\b"
        ):
            pipeline(cells, num_stages, 1)(tf.ones([2, 3]))
