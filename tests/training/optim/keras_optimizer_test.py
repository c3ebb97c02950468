"""Params name Keras's optimizers and schedules and ours, and nothing else."""

from typing import Any

import keras
import pytest

from lingvo_pipe.training.optim.keras_optimizer import (
    OptimizerParams,
    ScheduleParams,
    make_optimizer,
)
from lingvo_pipe.training.optim.optimizers import RMSpropFromOnes

SGD = OptimizerParams("SGD")


def test_params_reach_keras():
    schedule = ScheduleParams("ExponentialDecay", decay_steps=7, decay_rate=0.5)
    made = make_optimizer(OptimizerParams("Adam", beta_1=0.7), 0.3, schedule)
    decay = keras.optimizers.schedules.ExponentialDecay(0.3, 7, 0.5)
    want = keras.optimizers.Adam(decay, beta_1=0.7, name=made.name)
    assert made.get_config() == want.get_config()


def test_ours_are_found_by_name():
    p = OptimizerParams("RMSpropFromOnes", rho=0.8, momentum=0.9, epsilon=1.0)
    made = make_optimizer(p, 0.3, ScheduleParams("LinearWarmup", warmup_steps=2))
    assert isinstance(made, RMSpropFromOnes)
    assert (made.rho, made.momentum, made.epsilon) == (0.8, 0.9, 1.0)
    assert float(made.learning_rate) == 0.0


@pytest.mark.parametrize(
    ("optimizer", "schedule", "message"),
    [
        (OptimizerParams("Adagrd"), None, "'Adagrd'.*'Adagrad'"),
        (OptimizerParams("Optimizer"), None, "'Optimizer'.*'MultiOptimizer'"),
        (OptimizerParams("serialize"), None, "'serialize'.*'Adadelta'"),
        (
            OptimizerParams("SGD", momentom=1),
            None,
            r"\bSGD\b.*\['momentom'\].*'momentum'",
        ),
        (
            OptimizerParams("SGD", learning_rate=1),
            None,
            r"\['learning_rate'\].*task\.train\.learning_rate",
        ),
        (
            OptimizerParams("SGD", global_clipnorm=1),
            None,
            r"\['global_clipnorm'\].*clip_gradient_norm_to_value",
        ),
        (
            OptimizerParams("SGD", use_ema=True),
            None,
            r"\['use_ema'\].*task\.train\.ema_decay",
        ),
        (OptimizerParams("RMSprop", rh0=0.9), None, r"\bRMSprop\b.*\['rh0'\].*'rho'"),
        (
            OptimizerParams("RMSpropFromOne"),
            None,
            "'RMSpropFromOne'.*'RMSpropFromOnes'",
        ),
        (OptimizerParams("SGD", momentum=2.0), None, r"\bSGD\b.*{'momentum': 2\.0}"),
        (SGD, ScheduleParams("CosinDecay"), "'CosinDecay'.*'CosineDecay'"),
        (SGD, ScheduleParams("CosineDecay", steps=3), r"\['steps'\].*'decay_steps'"),
        (SGD, ScheduleParams("CosineDecay"), "CosineDecay.*{}.*decay_steps"),
    ],
)
def test_what_keras_lacks_is_refused(optimizer, schedule, message):
    with pytest.raises(ValueError, match=message):
        make_optimizer(optimizer, 0.1, schedule)


@pytest.mark.parametrize("schedule", [None, "CosineDecay"])
def test_a_bare_name_is_refused(schedule: Any) -> None:
    optimizer: Any = "Adam" if schedule is None else OptimizerParams("Adam")
    with pytest.raises(
        ValueError, match="(optimizer|lr_schedule): .*'(Adam|CosineDecay)'"
    ):
        make_optimizer(optimizer, 0.1, schedule)
