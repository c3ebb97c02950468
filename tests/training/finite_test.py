"""Whether all is finite is found out, wherever it is and whatever its dtype."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.pipeline.devices import stage_devices  # noqa: F401  Asks for several.
from lingvo_pipe.training.finite import all_finite

DTYPES = [tf.float16, tf.bfloat16, tf.float32, tf.float64]


def _variables() -> dict[str, tf.Variable]:
    variables = {}
    for i, dtype in enumerate(DTYPES):
        with tf.device(f"/CPU:{i % 2}"):
            variables[dtype.name] = tf.Variable(tf.ones([3, 2], dtype))
    return variables


def _is_finite(
    spoilt: str = "", value: float = 1.0, loss: float = 1.0, place: int = 0
) -> bool:
    variables, gradients = _variables(), {}
    for path, variable in variables.items():
        numbers = np.ones(6)
        if path == spoilt:
            numbers[place] = value
        gradients[path] = tf.cast(tf.reshape(numbers, [3, 2]), variable.dtype)
    gradients["frozen"] = tf.constant([math.nan])
    result = tf.function(all_finite)(tf.constant(loss), gradients, variables)
    return bool(result)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_single_number_that_is_not_finite_is_found(value: float) -> None:
    assert _is_finite()
    assert not _is_finite(loss=value)
    for dtype in DTYPES:
        assert not any(_is_finite(dtype.name, value, place=i) for i in (0, 5))


def test_large_numbers_are_finite() -> None:
    """Even where their sum is not in their own dtype."""
    variable = {"w": tf.Variable(tf.zeros([9], tf.float16))}
    large = tf.fill([9], tf.constant(6e4, tf.float16))
    assert all_finite(tf.constant(1.0), {"w": large}, variable)
