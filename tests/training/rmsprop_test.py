"""RMSProp is TensorFlow 1's, and its formula."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.training.rmsprop import RMSpropFromOnes

RATE, RHO, STEPS = 0.1, 0.9, 5
RANDOM = np.random.default_rng(0)
INITIAL = RANDOM.normal(size=[4, 3])
GRADIENTS = RANDOM.normal(size=[STEPS, 4, 3])


def trained(make_optimizer, epsilon, momentum):
    variable = tf.Variable(INITIAL)
    optimizer = make_optimizer(RATE, rho=RHO, epsilon=epsilon, momentum=momentum)
    optimizer.build([variable])
    for gradient in GRADIENTS:
        optimizer.apply([tf.constant(gradient)])
    return variable.numpy()


def by_formula(epsilon, momentum):
    w, s, m = INITIAL.copy(), np.ones_like(INITIAL), np.zeros_like(INITIAL)
    for g in GRADIENTS:
        s = RHO * s + (1 - RHO) * g**2
        m = momentum * m + RATE * g / np.sqrt(s + epsilon)
        w -= m
    return w


def by_tensorflow_1(epsilon, momentum):
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        variable = v1.Variable(INITIAL, use_resource=True)
        gradient = v1.placeholder(tf.float64, INITIAL.shape)
        update = v1.train.RMSPropOptimizer(
            RATE, decay=RHO, momentum=momentum, epsilon=epsilon
        ).apply_gradients([(gradient, variable)])
        session.run(v1.global_variables_initializer())
        for value in GRADIENTS:
            session.run(update, {gradient: value})
        return session.run(variable)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("epsilon", [1e-7, 0.1, 1.0])
def test_it_is_the_formula_and_tensorflow_1s(epsilon, momentum):
    got = trained(RMSpropFromOnes, epsilon, momentum)
    # Keras takes the rate in float32.
    np.testing.assert_allclose(got, by_formula(epsilon, momentum), rtol=1e-6)
    np.testing.assert_allclose(got, by_tensorflow_1(epsilon, momentum), rtol=1e-6)


def test_only_the_first_values_differ_from_kerass():
    theirs = trained(keras.optimizers.RMSprop, 1.0, 0.9)
    assert not np.allclose(trained(RMSpropFromOnes, 1.0, 0.9), theirs, rtol=0.01)
    variable = tf.Variable(INITIAL)
    ours = RMSpropFromOnes(RATE, momentum=0.9, centered=True)
    ours.build([variable])
    values = {
        slot.path.rpartition("_")[2]: set(np.ravel(slot.numpy()))
        for slot in ours.variables
        if slot.shape == variable.shape
    }
    assert values == {"velocity": {1.0}, "momentum": {0.0}, "gradient": {0.0}}


def test_steps_without_gradients_do_nothing():
    """Where the two are the same: averages of squares go, weights stay."""
    variable = tf.Variable(INITIAL)
    optimizer = RMSpropFromOnes(RATE, rho=RHO)
    optimizer.build([variable])
    for _ in range(3):
        optimizer.apply([tf.zeros_like(variable)])
    np.testing.assert_array_equal(variable, INITIAL)
    (velocity,) = (v for v in optimizer.variables if v.shape == variable.shape)
    np.testing.assert_allclose(velocity, np.full_like(INITIAL, RHO**3))
