"""Optimizers and schedules by name: those of Keras and ours, and nothing else."""

import re
from typing import Any

import keras
import pytest

from lingvo_pipe.training.keras_optimizer import (
    OptimizerParams,
    ScheduleParams,
    make_optimizer,
)
from lingvo_pipe.training.rmsprop import RMSpropFromOnes

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
        (OptimizerParams("Adagrd"), None, "no 'Adagrd'. Did you mean 'Adagrad'"),
        (OptimizerParams("Optimizer"), None, "no 'Optimizer'."),
        (OptimizerParams("serialize"), None, "no 'serialize'."),
        (OptimizerParams("SGD", momentom=1), None, "SGD does not take ['momentom']"),
        (OptimizerParams("SGD", learning_rate=1), None, "take ['learning_rate']"),
        (OptimizerParams("SGD", global_clipnorm=1), None, "take ['global_clipnorm']"),
        (
            OptimizerParams("SGD", use_ema=True),
            None,
            "take ['use_ema'] as arguments.* Set task.train.ema_decay instead.",
        ),
        (OptimizerParams("RMSprop", rh0=0.9), None, "RMSprop does not take ['rh0']"),
        (OptimizerParams("RMSpropFromOne"), None, "Did you mean 'RMSpropFromOnes'"),
        (OptimizerParams("SGD", momentum=2.0), None, "got {'momentum': 2.0}: "),
        (SGD, ScheduleParams("CosinDecay"), "no 'CosinDecay'. Did you mean 'CosineDec"),
        (SGD, ScheduleParams("CosineDecay", steps=3), "does not take ['steps']"),
        (SGD, ScheduleParams("CosineDecay"), "got {}: .*decay_steps"),
    ],
)
def test_what_keras_lacks_is_refused(optimizer, schedule, message):
    pattern = re.escape(message).replace(r"\.\*", ".*")
    with pytest.raises(ValueError, match=pattern):
        make_optimizer(optimizer, 0.1, schedule)


@pytest.mark.parametrize("schedule", [None, "CosineDecay"])
def test_a_bare_name_is_refused(schedule: Any) -> None:
    optimizer: Any = "Adam" if schedule is None else OptimizerParams("Adam")
    with pytest.raises(ValueError, match="must be Params; got '(Adam|CosineDecay)'"):
        make_optimizer(optimizer, 0.1, schedule)
