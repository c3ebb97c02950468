"""Moving averages of weights: the formula, and where they lie."""

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.pipeline.devices import stage_devices  # noqa: F401  Asks for several.
from lingvo_pipe.training.optim.exponential_moving_average import (
    ExponentialMovingAverage,
    define_averaging_params,
    make_averages,
)
from tests.support.errors import fails

STEPS = 30
PATHS = ("task/w", "task/moving_mean")
VALUES = np.random.default_rng(0).normal(size=[STEPS + 1, 4, 3])


def make_variables(dtype=tf.float64):
    """One that is trained on one device, and one that is not on another."""
    variables = {}
    for i, path in enumerate(PATHS):
        with tf.device(f"CPU:{i + 1}"):
            initial = tf.cast(VALUES[0], dtype)
            variables[path] = tf.Variable(initial, trainable=i == 0, name=path)
    return variables


def averages_of(variables, **values):
    p = Params()
    define_averaging_params(p)
    trained = {path: v for path, v in variables.items() if v.trainable}
    return make_averages(p.Set(**values), trained, variables)


def averaged(decay, dtype=tf.float64, in_graph=False):
    variables = make_variables(dtype)
    averages = ExponentialMovingAverage(decay, variables)
    update = tf.function(averages.Update) if in_graph else averages.Update
    for step in range(1, STEPS + 1):
        for variable in variables.values():
            variable.assign(tf.cast(VALUES[step], dtype))
        update(tf.constant(step, tf.int64))
    return averages


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("decay", [0.5, 0.9999])
def test_averages_are_the_formula(decay, in_graph):
    want = VALUES[0]
    for n in range(1, STEPS + 1):
        fraction = min(decay, (1 + n) / (10 + n))
        want = fraction * want + (1 - fraction) * VALUES[n]
    for average in averaged(decay, in_graph=in_graph).State().values():
        np.testing.assert_allclose(average, want, rtol=1e-12)


def test_averages_lie_beside_their_variables():
    variables = make_variables()
    state = ExponentialMovingAverage(0.9, variables).State()
    assert list(state) == [f"{path}/ema" for path in PATHS]
    assert len({variable.device for variable in variables.values()}) == 2
    for path, variable in variables.items():
        assert state[f"{path}/ema"].device == variable.device
        assert not state[f"{path}/ema"].trainable


def test_values_are_averages_where_there_are_any():
    variables = make_variables()
    averages = averages_of(variables, ema_decay=0.9, ema_decay_moving_vars=False)
    for variable in variables.values():
        variable.assign_add(tf.ones_like(variable))
    trained, moving = variables.values()
    np.testing.assert_array_equal(averages.Value(trained), VALUES[0])
    np.testing.assert_array_equal(averages.Value(moving), moving)


def test_small_changes_of_variables_of_16_bits_are_not_lost():
    averages = averaged(0.9999, tf.bfloat16)
    (average, _) = averages.State().values()
    assert average.dtype == tf.float32
    want = averaged(0.9999).State()["task/w/ema"]
    np.testing.assert_allclose(average, want, atol=2e-2)
    # In bfloat16 an average of ones would never leave them for a weight of 1.01.
    variable = tf.Variable(tf.ones([], tf.bfloat16))
    averages = ExponentialMovingAverage(0.9999, {"w": variable})
    variable.assign(1.0078125)
    for n in range(10**6, 10**6 + 100):
        averages.Update(tf.constant(n))
    got = float(averages.State()["w/ema"])
    assert got == pytest.approx(1 + (1 - 0.9999**100) * 0.0078125, abs=1e-5)
    assert averages.Value(variable).dtype == tf.bfloat16


def test_what_is_not_trained_is_averaged_only_if_asked():
    def paths(**values):
        made = averages_of(make_variables(), ema_decay=0.9, **values)
        return [name.removesuffix("/ema") for name in made.State()]

    assert paths(ema_decay_moving_vars=True) == list(PATHS)
    assert paths(ema_decay_moving_vars=False) == ["task/w"]
    with fails(path="task.train.ema_decay_moving_vars", got=None):
        paths()
    assert averages_of(make_variables()) is None
