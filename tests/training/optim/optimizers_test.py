"""Adafactor follows its paper's formulas, RMSProp TensorFlow 1, on any device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.pipeline.devices import stage_devices  # noqa: F401  Asks for several.
from lingvo_pipe.training.optim.keras_optimizer import (
    OptimizerParams,
    ScheduleParams,
    make_optimizer,
    make_rate,
)
from lingvo_pipe.training.optim.learner import Learner, define_learner_params
from lingvo_pipe.training.optim.optimizers import RMSpropFromOnes

STEPS = 6
SHAPES = {"task/a/w": [4, 3], "task/a/b": [3], "task/k": [2, 3, 5, 4], "task/s": []}


def gradient(shape: Sequence[int], step: int) -> np.ndarray:
    """Returns ever larger gradients, so that updates are clipped."""
    return np.random.default_rng(step).normal(size=shape) * 3.0**step


def initial(shape: Sequence[int]) -> np.ndarray:
    """Returns weights with an RMS above or below ε₂."""
    scale = 1e-5 if len(shape) == 1 else 0.5
    return np.random.default_rng(99).normal(size=shape) * scale


def trained(
    p: Params, rate: float, schedule: Params | None = None, dtype: Any = tf.float64
) -> dict[str, np.ndarray]:
    variables = {
        path: tf.Variable(initial(shape), dtype=dtype, name=path)
        for path, shape in SHAPES.items()
    }
    optimizer = make_optimizer(p, make_rate(rate, schedule))
    optimizer.build(list(variables.values()))

    @tf.function(autograph=False)
    def apply(gradients: list[tf.Tensor]) -> None:
        optimizer.apply(gradients)

    for step in range(STEPS):
        apply([tf.constant(gradient(s, step), dtype) for s in SHAPES.values()])
    return {path: variable.numpy() for path, variable in variables.items()}


def by_formula(
    w: np.ndarray,
    rates: Sequence[float],
    epsilons: tuple[float, float] = (1e-30, 1e-3),
    clip: float = 1.0,
    decay: float = -0.8,
    accumulated: int = 1,
) -> np.ndarray:
    """Computes the paper's algorithms literally, with sums, in float64."""
    w = w.copy()
    rows = columns = v = 0.0
    for step, rate in enumerate(rates[: STEPS // accumulated]):
        first, beta = step * accumulated, 1 - float(step + 1) ** decay
        g = np.mean([gradient(w.shape, first + i) for i in range(accumulated)], 0)
        squares = g**2 + epsilons[0]
        if w.ndim >= 2:
            rows = beta * rows + (1 - beta) * squares.sum(-1, keepdims=True)
            columns = beta * columns + (1 - beta) * squares.sum(-2, keepdims=True)
            v = rows @ columns / rows.sum(-2, keepdims=True)
        else:
            v = beta * v + (1 - beta) * squares
        u = g / np.sqrt(v)
        u /= max(1.0, np.sqrt(np.mean(u**2)) / clip)
        w -= rate * max(epsilons[1], np.sqrt(np.mean(w**2))) * u
    return w


def assert_near(got: np.ndarray, want: np.ndarray, tolerance: float) -> None:
    largest = np.max(np.abs(want))
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * largest)


def falling(rate: float) -> list[float]:
    return [min(rate, (step + 1) ** -0.5) for step in range(STEPS)]


@pytest.mark.parametrize(
    ("arguments", "formula"),
    [
        ({}, {}),
        ({"clip_threshold": 0.3}, {"clip": 0.3}),
        ({"epsilon_1": 0.1, "epsilon_2": 0.7}, {"epsilons": (0.1, 0.7)}),
        ({"beta_2_decay": -0.5}, {"decay": -0.5}),
        # Keras's accumulators were once taken for slots of Adafactor.
        ({"gradient_accumulation_steps": 2}, {"accumulated": 2}),
    ],
    ids=["published", "clipped", "epsilons", "decay", "accumulated"],
)
@pytest.mark.parametrize("rate", [1 / 128, 7 / 8])  # Which float32 has exactly.
def test_adafactor_is_the_formula(arguments: Any, formula: Any, rate: float) -> None:
    got = trained(OptimizerParams("Adafactor", **arguments), rate)
    for path, shape in SHAPES.items():
        want = by_formula(initial(shape), falling(rate), **formula)
        assert_near(got[path], want, 1e-12)


def test_a_schedule_determines_the_rate() -> None:
    """Even above 1/√t, as without relative steps."""
    schedule = ScheduleParams("InverseSquareRoot", constant_steps=2)
    got = trained(OptimizerParams("Adafactor"), 0.9, schedule)
    constant = trained(OptimizerParams("Adafactor", relative_step=False), 0.9)
    rates = [0.9 * min(1.0, (2 / t) ** 0.5) for t in range(1, STEPS + 1)]
    for path, shape in SHAPES.items():
        want = by_formula(initial(shape), rates)
        assert_near(got[path], want, 1e-5)  # Keras takes the rate in float32.
        want = by_formula(initial(shape), [0.9] * STEPS)
        assert_near(constant[path], want, 1e-5)


def test_adafactor_equals_kerass_on_kerass_variables() -> None:
    theirs = [keras.Variable(initial(s), dtype="float64") for s in SHAPES.values()]
    optimizer = keras.optimizers.Adafactor(0.01)
    optimizer.build(theirs)
    for step in range(STEPS):
        gradients = [tf.constant(gradient(s, step)) for s in SHAPES.values()]
        optimizer.apply(gradients)
    got = trained(OptimizerParams("Adafactor"), 0.01)
    for ours, their in zip(got.values(), theirs, strict=True):
        assert_near(ours, their.numpy(), 1e-6)


def test_kerass_own_cannot_train_plain_variables() -> None:
    """Once they can, ours may go."""
    with pytest.raises(ValueError, match="`/`.*task/w"):
        keras.optimizers.Adafactor().build([tf.Variable([[0.0]], name="task/w")])


def learner(variables: dict[str, tf.Variable]) -> Learner:
    p = Params()
    define_learner_params(p)
    p.Set(learning_rate=0.01, optimizer=OptimizerParams("Adafactor"))
    return Learner(p, variables)


def test_slots_are_rows_and_columns_beside_their_variables() -> None:
    variables = {}
    for i, (path, shape) in enumerate(SHAPES.items()):
        with tf.device(f"CPU:{i % 2 + 1}"):
            variables[path] = tf.Variable(initial(shape), name=path)
    state = learner(variables).State()
    shapes = {name.split("/")[-1]: tuple(slot.shape) for name, slot in state.items()}
    assert shapes == {
        "iteration": (),
        "task_a_w_0_rows": (4,),
        "task_a_w_0_columns": (3,),
        "task_a_b_0_velocity": (3,),
        "task_k_0_rows": (2, 3, 5),
        "task_k_0_columns": (2, 3, 4),
        "task_s_0_velocity": (),
    }
    for path, variable in variables.items():
        prefix = path.replace("/", "_")
        slots = [slot for name, slot in state.items() if f"/{prefix}_0_" in name]
        assert {slot.device for slot in slots} == {variable.device}
    assert len({variable.device for variable in variables.values()}) == 2


def test_sixteen_bit_variables_have_32_bit_slots() -> None:
    variables = {"task/w": tf.Variable(tf.ones([2, 2], tf.bfloat16), name="task/w")}
    made = learner(variables)
    made.Apply({"task/w": tf.ones([2, 2], tf.bfloat16)})
    state = made.State()
    slots = [slot for name, slot in state.items() if "task_w" in name]
    assert {slot.dtype for slot in slots} == {tf.float32}
    assert np.all(variables["task/w"].numpy() < 1)
    exact = trained(OptimizerParams("Adafactor"), 0.1)
    for path, value in trained(
        OptimizerParams("Adafactor"), 0.1, None, tf.half
    ).items():
        np.testing.assert_allclose(value, exact[path], rtol=0.05, atol=1e-4)


RMS_RATE, RMS_RHO, RMS_STEPS = 0.1, 0.9, 5
RMS_RANDOM = np.random.default_rng(0)
RMS_INITIAL = RMS_RANDOM.normal(size=[4, 3])
RMS_GRADIENTS = RMS_RANDOM.normal(size=[RMS_STEPS, 4, 3])


def rms_trained(make_optimizer, epsilon, momentum):
    variable = tf.Variable(RMS_INITIAL)
    optimizer = make_optimizer(
        RMS_RATE, rho=RMS_RHO, epsilon=epsilon, momentum=momentum
    )
    optimizer.build([variable])
    for gradient in RMS_GRADIENTS:
        optimizer.apply([tf.constant(gradient)])
    return variable.numpy()


def rms_by_tensorflow_1(epsilon, momentum):
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        variable = v1.Variable(RMS_INITIAL, use_resource=True)
        gradient = v1.placeholder(tf.float64, RMS_INITIAL.shape)
        update = v1.train.RMSPropOptimizer(
            RMS_RATE, decay=RMS_RHO, momentum=momentum, epsilon=epsilon
        ).apply_gradients([(gradient, variable)])
        session.run(v1.global_variables_initializer())
        for value in RMS_GRADIENTS:
            session.run(update, {gradient: value})
        return session.run(variable)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("epsilon", [1e-7, 0.1, 1.0])
def test_rmsprop_is_tensorflow_1s(epsilon, momentum):
    got = rms_trained(RMSpropFromOnes, epsilon, momentum)
    # Keras takes the rate in float32.
    np.testing.assert_allclose(got, rms_by_tensorflow_1(epsilon, momentum), rtol=1e-6)


def test_only_initial_values_differ_from_kerass_rmsprop():
    theirs = rms_trained(keras.optimizers.RMSprop, 1.0, 0.9)
    assert not np.allclose(rms_trained(RMSpropFromOnes, 1.0, 0.9), theirs, rtol=0.01)
    variable = tf.Variable(RMS_INITIAL)
    ours = RMSpropFromOnes(RMS_RATE, momentum=0.9, centered=True)
    ours.build([variable])
    values = {
        slot.path.rpartition("_")[2]: set(np.ravel(slot.numpy()))
        for slot in ours.variables
        if slot.shape == variable.shape
    }
    assert values == {"velocity": {1.0}, "momentum": {0.0}, "gradient": {0.0}}
