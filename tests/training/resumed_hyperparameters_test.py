"""A resumed run trains with the hyper-parameters of its params, not its checkpoint's.

Once a run resumed with learning rate 100 instead of 0.01 continued with 0.01: the
optimizer's variable was restored over the new value.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.training.checkpoint.checkpointer import Checkpointer
from lingvo_pipe.training.optim.keras_optimizer import (
    LEARNING_RATE_NAME,
    OptimizerParams,
    ScheduleParams,
    make_optimizer,
    optimizer_classes,
)
from lingvo_pipe.training.optim.learner import Learner, define_learner_params
from tests.support.cases import exhaustive, fast_cases
from tests.support.errors import fails

# Another value of each param, large enough to show in a single step.
_CHANGED = {
    "adam_beta_1": 0.5,
    "beta": 3.0,
    "beta_1": 0.5,
    "beta_2": 0.5,
    "beta_2_decay": -0.3,
    "centered": True,
    "amsgrad": True,
    "clip_threshold": 0.01,
    "clipvalue": 0.001,
    "epsilon": 0.5,
    "epsilon_1": 0.5,
    "epsilon_2": 5.0,
    "gradient_accumulation_steps": 2,
    "l1_regularization_strength": 0.5,
    "l2_regularization_strength": 0.5,
    "l2_shrinkage_regularization_strength": 0.5,
    "learning_rate_power": -0.2,
    "momentum": 0.5,
    "nesterov": True,
    "relative_step": False,
    "rho": 0.5,
    "warmup_steps": 7,
    "weight_decay": 0.3,
}
# Nesterov's momentum needs a momentum.
_BASE = {"SGD": {"momentum": 0.9}}
# These only set the initial value of a slot.
_INITIAL = {"initial_accumulator_value"}
# They need objects for arguments, or Keras's own variables.
_NOT_FROM_PARAMS = {"LossScaleOptimizer", "MultiOptimizer", "Muon"}
_OF_LEARNER = {"name", "learning_rate", "kwargs", "clipnorm", "global_clipnorm"}
_OF_LEARNER |= {
    "loss_scale_factor",
    "use_ema",
    "ema_momentum",
    "ema_overwrite_frequency",
}


# Optimizers of the fast suite.
_FAST = {"Adam", "SGD"}


def _cases() -> list[Any]:
    return [
        (name, argument) if name in _FAST else exhaustive(name, argument)
        for name, cls in sorted(optimizer_classes().items())
        if name not in _NOT_FROM_PARAMS
        for argument in inspect.signature(cls).parameters
        if argument not in _OF_LEARNER | _INITIAL
    ]


def _variables() -> dict[str, tf.Variable]:
    first = tf.random.stateless_uniform([30, 20], seed=[1, 2])
    return {"task/w": tf.Variable(first, name="task/w")}


def _step(learner: Learner, step: int) -> None:
    learner.Apply({"task/w": tf.random.stateless_normal([30, 20], seed=[step, 1])})


def _params(optimizer: Params, **values: Any) -> Params:
    p = Params()
    define_learner_params(p)
    return p.Set(learning_rate=1.0, optimizer=optimizer).Set(**values)


def _resumed(directory: Path, before: Params, now: Params) -> np.ndarray:
    """Returns the weights after two steps with `before` and two more with `now`."""
    variables = _variables()
    learner = Learner(before, variables)
    _step(learner, 0)
    _step(learner, 1)
    Checkpointer(directory, {**variables, **learner.State()}).save(2)
    variables = _variables()
    learner = Learner(now, variables)
    Checkpointer(directory, {**variables, **learner.State()}).restore()
    _step(learner, 2)
    _step(learner, 3)
    return variables["task/w"].numpy()


@pytest.mark.parametrize(("name", "argument"), _cases())
def test_a_changed_argument_acts_on_resume(
    tmp_path: Path, name: str, argument: str
) -> None:
    """Or resuming is rejected, if the argument changes the optimizer's variables."""
    base = _BASE.get(name, {})
    before = _params(OptimizerParams(name, **base))
    changed_argument = {argument: _CHANGED[argument]}
    now = _params(OptimizerParams(name, **{**base, **changed_argument}))
    same = _resumed(tmp_path / "same", before, before)
    states = [Learner(p, _variables()).State().keys() for p in (before, now)]
    if len(states[0]) != len(states[1]):
        with fails(expected="the variables of the model"):
            _resumed(tmp_path / "changed", before, now)
        return
    changed = _resumed(tmp_path / "changed", before, now)
    assert not np.array_equal(same, changed)


@pytest.mark.parametrize(
    "name",
    fast_cases(sorted(set(optimizer_classes()) - _NOT_FROM_PARAMS), _FAST),
)
def test_a_changed_learning_rate_acts_on_resume(tmp_path: Path, name: str) -> None:
    before = _params(OptimizerParams(name))
    before.learning_rate = 0.01
    now = before.Copy().Set(learning_rate=0.3)
    same = _resumed(tmp_path / "same", before, before)
    assert not np.allclose(same, _resumed(tmp_path / "changed", before, now))


SCHEDULE = ScheduleParams("CosineDecay", decay_steps=4)


@pytest.mark.parametrize("values", [(None, SCHEDULE), (SCHEDULE, None)])
def test_a_schedule_replaces_a_constant_rate_on_resume(
    tmp_path: Path, values: tuple[Params | None, Params | None]
) -> None:
    before, now = (
        _params(OptimizerParams("Adam"), lr_schedule=each) for each in values
    )
    same = _resumed(tmp_path / "same", before, before)
    assert not np.array_equal(same, _resumed(tmp_path / "changed", before, now))


def test_an_old_checkpoint_with_the_learning_rate_is_read(tmp_path: Path) -> None:
    """Checkpoints of earlier versions hold the rate as a variable of the learner."""
    variables, p = _variables(), _params(OptimizerParams("Adam"))
    learner = Learner(p, variables)
    old = {**variables, **learner.State(), LEARNING_RATE_NAME: tf.Variable(0.01)}
    Checkpointer(tmp_path, old).save(1)
    learner = Learner(p.Set(learning_rate=5.0), variables)
    Checkpointer(tmp_path, {**variables, **learner.State()}).restore()
    assert float(learner.learning_rate) == 5.0


def test_checkpoints_leave_out_the_learning_rate_by_its_name() -> None:
    optimizer = make_optimizer(OptimizerParams("SGD"), 0.1)
    assert LEARNING_RATE_NAME in {each.path for each in optimizer.variables}
