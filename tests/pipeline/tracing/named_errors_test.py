"""Errors of tracing name where they came up, keep their kind, and say what to do."""

from __future__ import annotations

import re
import traceback
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.pipeline.tracing.named_errors import named_errors, specs_text
from tests.pipeline.example_layers import function_cell, pipeline

WHERE = "FProp of the FCLayer at model/dense (stage 0)"


class OddError(LookupError):
    """An error whose arguments are not a message."""

    def __init__(self, code: int, name: str):
        super().__init__(f"{name}: {code}")


class OddValueError(ValueError):
    """A ValueError whose arguments are not a message."""

    def __init__(self, code: int, name: str):
        super().__init__(f"{name}: {code}")


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("odd"), ValueError),
        (UserValueError("odd"), UserValueError),
        (KeyError("odd"), KeyError),
        (OddError(3, "odd"), LookupError),
        (OddValueError(3, "odd"), ValueError),
        (UnicodeDecodeError("odd", b"", 0, 1, ""), ValueError),
        (tf.errors.OpError(None, None, "odd", 2), RuntimeError),
        (tf.errors.OutOfRangeError(None, None, "odd"), tf.errors.OutOfRangeError),
    ],
)
def test_errors_of_every_kind_are_named(error: Exception, kind: type) -> None:
    specs = [tf.TensorSpec([2, 3]), None, {"a": tf.TensorSpec([], tf.int32)}]
    with pytest.raises(kind) as found, named_errors(WHERE, specs, "Look there."):
        _raise(error)
    assert type(found.value) is kind
    text = str(found.value)
    assert re.search(rf"{re.escape(WHERE)}.*float32 \(2, 3\), a int32 \(\)", text)
    assert "odd" in text
    assert "Look there." in text
    # Whoever reads it sees what raised it.
    assert traceback.extract_tb(found.value.__traceback__)[-1].name == "_raise"


def test_what_is_named_already_is_left_alone() -> None:
    error = KeyError(f"{WHERE} has none")
    with pytest.raises(KeyError) as found, named_errors(WHERE, []):
        raise error
    assert found.value is error


def test_the_cause_of_an_error_stays() -> None:
    cause = ValueError("the cause")
    named = rf"{re.escape(WHERE)}.*\bodd$"
    with pytest.raises(TypeError, match=named) as found, named_errors(WHERE, None):
        raise TypeError("odd") from cause
    assert found.value.__cause__ is cause


@pytest.mark.parametrize(
    ("structure", "text"),
    [
        (tf.TensorSpec([2]), "float32 (2,)"),
        (
            [tf.TensorSpec([2]), None, tf.TensorSpec([], tf.int32)],
            "float32 (2,), int32 ()",
        ),
        ({"x": [tf.TensorSpec([2])], "y": None}, "x[0] float32 (2,)"),
        ((None, {"x": tf.TensorSpec([2])}), "x float32 (2,)"),
        (
            ([tf.TensorSpec([1]), tf.TensorSpec([2])],),
            "[0] float32 (1,), [1] float32 (2,)",
        ),
        (None, ""),
    ],
)
def test_tensors_are_named_by_their_places(structure: Any, text: str) -> None:
    assert specs_text(structure) == text


@pytest.mark.parametrize("text", ["odd", "odd."])
def test_a_hint_is_a_sentence_of_its_own(text: str) -> None:
    with (
        pytest.raises(TypeError, match=rf"{re.escape(WHERE)}.*\bodd\. Look\.$"),
        named_errors(WHERE, [], "Look."),
    ):
        raise TypeError(text)


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
    named = r"^FProp\b.*\bFunctionLayer\b.*\bpipe/cells_0 .*stage 0\b.*\btf\.cond\b"
    with pytest.raises(Exception, match=named) as found:
        pipeline([function_cell(run)], 1, 1)(tf.ones([2, 3]))
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
    layer = pipeline([function_cell(make())], 1, 1)
    with pytest.raises(
        ValueError, match=r"\b__init__\b.*\bCreateVariable\b.*\btheta\."
    ):
        layer(tf.ones([2, 3]))


def test_a_keras_layer_without_weights_may_be_used() -> None:
    run = keras.layers.Rescaling(3.0)
    layer = pipeline([function_cell(run)], 1, 1)
    np.testing.assert_array_equal(layer(tf.ones([2, 3])), 3.0 * np.ones([2, 3]))


@pytest.mark.parametrize("run", [lambda x: x + "a", lambda x: x.shpae])
def test_another_error_is_left_as_it_is(run: Any) -> None:
    layer = pipeline([function_cell(run)], 1, 1)
    with pytest.raises(
        Exception, match=r"\bFunctionLayer\b.*\bpipe/cells_0\b"
    ) as found:
        layer(tf.ones([2, 3]))
    assert "tf.cond" not in str(found.value)
    assert "CreateVariable" not in str(found.value)
