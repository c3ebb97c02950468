"""The learner updates as Keras does, on the devices where the variables are."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.pipeline.devices import stage_devices  # noqa: F401  Asks for several.
from lingvo_pipe.training.checkpoint.checkpointer import Checkpointer
from lingvo_pipe.training.optim.keras_optimizer import (
    OptimizerParams,
    ScheduleParams,
    optimizer_classes,
)
from lingvo_pipe.training.optim.learner import Learner, define_learner_params
from tests.support.errors import fails

COSINE = ScheduleParams("CosineDecay", decay_steps=4)


def learner_params(**values):
    p = Params()
    define_learner_params(p)
    return p.Set(learning_rate=0.1).Set(**values)


def make_variables():
    """Two variables on two devices."""
    variables = {}
    for i, (path, shape) in enumerate({"task/a/b_w": [3, 2], "task/b": [4]}.items()):
        with tf.device(f"CPU:{i + 1}"):
            initial = tf.random.stateless_uniform(shape, seed=[i, 0])
            variables[path] = tf.Variable(initial, name=path)
    return variables


def gradients_of(variables, step):
    return {
        path: tf.random.stateless_normal(variable.shape, seed=[step, i])
        for i, (path, variable) in enumerate(variables.items())
    }


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize(
    ("values", "make_keras"),
    [
        ({}, lambda: keras.optimizers.SGD(0.1)),
        (
            {"optimizer": OptimizerParams("SGD", momentum=0.9, nesterov=True)},
            lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
        ),
        (
            {"optimizer": OptimizerParams("Adam"), "lr_schedule": COSINE},
            lambda: keras.optimizers.Adam(
                keras.optimizers.schedules.CosineDecay(0.1, 4)
            ),
        ),
        (
            {"clip_gradient_norm_to_value": 0.5},
            lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.5),
        ),
        (
            {"optimizer": OptimizerParams("AdamW", weight_decay=0.1)},
            lambda: keras.optimizers.AdamW(0.1, weight_decay=0.1),
        ),
    ],
    ids=["SGD", "momentum", "schedule", "clipped", "decoupled"],
)
def test_updates_as_keras_does(values, make_keras, in_graph):
    ours, theirs = make_variables(), make_variables()
    learner, optimizer = Learner(learner_params(**values), ours), make_keras()
    optimizer.build(list(theirs.values()))
    apply, keras_apply = learner.Apply, optimizer.apply
    if in_graph:
        apply = tf.function(learner.Apply, autograph=False)
        keras_apply = tf.function(optimizer.apply, autograph=False)
    for step in range(3):
        gradients = gradients_of(ours, step)
        apply(gradients)
        keras_apply(list(gradients.values()))
    for path, variable in ours.items():
        np.testing.assert_array_equal(variable, theirs[path])
        assert not np.array_equal(variable, make_variables()[path])


def test_weight_decay_comes_before_clipping():
    """It is part of the loss, whose gradient is clipped."""
    variables = make_variables()
    p = learner_params(
        l2_regularizer_weight=0.3,
        l2_regularizer_scales=[("b$", 0.0)],
        clip_gradient_norm_to_value=0.5,
    )
    gradients = gradients_of(variables, 0)
    want = {path: variable.numpy() for path, variable in variables.items()}
    sums = {path: gradients[path].numpy() for path in want}
    sums["task/a/b_w"] += 0.3 * want["task/a/b_w"]
    norm = np.sqrt(sum(np.sum(np.square(total)) for total in sums.values()))
    assert norm > 0.5
    Learner(p, variables).Apply(gradients)
    for path, variable in variables.items():
        want[path] -= 0.1 * sums[path] * 0.5 / norm
        np.testing.assert_allclose(variable, want[path], rtol=1e-6)


def test_gradients_of_others_are_left_out():
    """Frozen variables have no slots and no share in the norm."""
    both, first = make_variables(), make_variables()
    gradients = gradients_of(both, 0)
    (path, other) = both
    p = learner_params(
        optimizer=OptimizerParams("Adam"), clip_gradient_norm_to_value=0.1
    )
    learner = Learner(p, {path: both[path]})
    learner.Apply(gradients)
    slots = learner.State().values()
    assert {tuple(slot.shape) for slot in slots} == {(), (3, 2)}
    Learner(p, {path: first[path]}).Apply({path: gradients[path]})
    np.testing.assert_array_equal(both[path], first[path])
    np.testing.assert_array_equal(both[other], first[other])


def test_gradients_are_matched_by_path_not_by_order():
    ours, again = make_variables(), make_variables()
    gradients = gradients_of(ours, 0)
    Learner(learner_params(), ours).Apply(gradients)
    Learner(learner_params(), again).Apply(dict(reversed(gradients.items())))
    for path, variable in ours.items():
        np.testing.assert_array_equal(variable, again[path])


def test_slots_are_beside_their_variables():
    variables = make_variables()
    adam = learner_params(optimizer=OptimizerParams("Adam"))
    state = Learner(adam, variables).State()
    for variable in variables.values():
        slots = [slot for slot in state.values() if slot.shape == variable.shape]
        assert len(slots) == 2
        assert {slot.device for slot in slots} == {variable.device}
    assert len({variable.device for variable in variables.values()}) == 2


def test_state_is_complete_and_named_alike_each_time():
    adam = learner_params(optimizer=OptimizerParams("Adam"))
    variables = make_variables()
    variables["task/a_b/w"] = tf.Variable(tf.ones([3, 2]), name="task/a_b/w")
    first, second = (Learner(adam, variables).State() for _ in range(2))
    assert list(first) == list(second)
    # Two slots for each variable, and the number of steps.
    assert len({id(variable) for variable in first.values()}) == 2 * 3 + 1


def test_optimizers_that_only_train_kerass_variables_are_refused():
    muon = learner_params(optimizer=OptimizerParams("Muon"))
    with fails(path="task.train.optimizer"):
        Learner(muon, make_variables())


def test_learning_rate_is_that_of_the_next_step():
    variables = make_variables()
    learner = Learner(learner_params(lr_schedule=COSINE), variables)
    for step in range(6):
        want = 0.1 * (1 + np.cos(np.pi * min(step, 4) / 4)) / 2
        assert float(learner.learning_rate) == pytest.approx(want, abs=1e-7)
        learner.Apply(gradients_of(variables, step))


@pytest.mark.parametrize("rate", [1, np.float32(1.0)])
def test_a_learning_rate_may_be_any_number(rate):
    """Once Keras computed the rates that follow from an integer in integers."""
    variables = make_variables()
    decay = ScheduleParams("ExponentialDecay", decay_steps=1, decay_rate=0.5)
    learner = Learner(learner_params(learning_rate=rate, lr_schedule=decay), variables)
    learner.Apply(gradients_of(variables, 0))
    assert float(learner.learning_rate) == 0.5
    constant = Learner(learner_params(learning_rate=rate), variables)
    assert float(constant.learning_rate) == 1.0


@pytest.mark.parametrize(
    "name", ["clip_gradient_norm_to_value", "clip_gradient_single_norm_to_value"]
)
def test_gradients_are_not_clipped_before_keras_accumulates_them(name):
    accumulating = OptimizerParams("SGD", gradient_accumulation_steps=2)
    with fails(path="task.train.optimizer.arguments", got=2):
        Learner(learner_params(optimizer=accumulating, **{name: 1.0}), make_variables())
    Learner(learner_params(optimizer=accumulating, **{name: 0.0}), make_variables())


def test_gradients_are_clipped_each_by_itself():
    variables = make_variables()
    gradients = gradients_of(variables, 0)
    want = {path: variable.numpy() for path, variable in variables.items()}
    p = learner_params(clip_gradient_single_norm_to_value=0.5)
    Learner(p, variables).Apply(gradients)
    for path, variable in variables.items():
        gradient = gradients[path].numpy()
        assert np.linalg.norm(gradient) > 0.5
        want[path] -= 0.1 * gradient * 0.5 / np.linalg.norm(gradient)
        np.testing.assert_allclose(variable, want[path], rtol=1e-6)


def test_gradients_are_clipped_by_one_norm():
    p = learner_params(
        clip_gradient_norm_to_value=1.0, clip_gradient_single_norm_to_value=1.0
    )
    with fails(path="task.train", got="both"):
        Learner(p, make_variables())


@pytest.mark.parametrize("other", [None, 0, 0.5])
def test_a_norm_of_0_clips_nothing(other):
    got, want = make_variables(), make_variables()
    single = "clip_gradient_single_norm_to_value"
    zero = {"clip_gradient_norm_to_value": 0.0, single: other}
    Learner(learner_params(**zero), got).Apply(gradients_of(got, 0))
    Learner(learner_params(**{single: other or None}), want).Apply(
        gradients_of(want, 0)
    )
    for path, variable in got.items():
        np.testing.assert_array_equal(variable, want[path])
        is_start = np.array_equal(variable, make_variables()[path])
        assert not is_start


# They need objects for arguments, or Keras's own variables.
_NOT_FROM_PARAMS = {"LossScaleOptimizer", "MultiOptimizer", "Muon"}


@pytest.mark.parametrize("name", sorted(set(optimizer_classes()) - _NOT_FROM_PARAMS))
def test_arrays_stay_on_their_devices_and_in_earlier_snapshots(name, tmp_path):
    """Once Keras brought gradients and slots of all devices to the first device."""
    variables = make_variables()
    learner = Learner(learner_params(optimizer=OptimizerParams(name)), variables)
    apply = tf.function(learner.Apply, autograph=False)
    gradients = gradients_of(variables, 1)
    devices = {tuple(v.shape): v.device for v in variables.values()}
    # A read without a device is where the variable is.
    elsewhere = [
        operation.name
        for operation in apply.get_concrete_function(gradients).graph.get_operations()
        if operation.type not in ("Placeholder", "ReadVariableOp", "Const")
        for x in operation.outputs
        if operation.device != devices.get(tuple(x.shape or ()), operation.device)
    ]
    assert elsewhere == []
    state = {**variables, **learner.State()}
    apply(gradients)
    snapshot = Checkpointer(tmp_path, state).snapshot()
    copies = {path: x.numpy().copy() for path, x in snapshot.items()}
    apply(gradients)
    for path, copy in copies.items():
        np.testing.assert_array_equal(snapshot[path].numpy(), copy)
    assert all((v.numpy() != copies[path]).any() for path, v in variables.items())
