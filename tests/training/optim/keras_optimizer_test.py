"""Params name Keras's optimizers and schedules and ours, and nothing else."""

from typing import Any

import keras
import pytest

from lingvo_pipe.training.optim.keras_optimizer import (
    OptimizerParams,
    ScheduleParams,
    make_optimizer,
    make_rate,
)
from lingvo_pipe.training.optim.optimizers import RMSpropFromOnes
from tests.support.errors import fails


def test_params_reach_keras():
    schedule = ScheduleParams("ExponentialDecay", decay_steps=7, decay_rate=0.5)
    rate = make_rate(0.3, schedule)
    made = make_optimizer(OptimizerParams("Adam", beta_1=0.7), rate)
    decay = keras.optimizers.schedules.ExponentialDecay(0.3, 7, 0.5)
    want = keras.optimizers.Adam(decay, beta_1=0.7, name=made.name)
    assert made.get_config() == want.get_config()


def test_ours_are_found_by_name():
    p = OptimizerParams("RMSpropFromOnes", rho=0.8, momentum=0.9, epsilon=1.0)
    rate = make_rate(0.3, ScheduleParams("LinearWarmup", warmup_steps=2))
    made = make_optimizer(p, rate)
    assert isinstance(made, RMSpropFromOnes)
    assert (made.rho, made.momentum, made.epsilon) == (0.8, 0.9, 1.0)
    assert float(made.learning_rate) == 0.0


@pytest.mark.parametrize(
    ("optimizer", "got", "hint"),
    [
        (OptimizerParams("Adagrd"), "Adagrd", "'Adagrad'"),
        (OptimizerParams("Optimizer"), "Optimizer", ""),
        (OptimizerParams("serialize"), "serialize", ""),
        (OptimizerParams("SGD", momentom=1), ["momentom"], "'momentum'"),
        (OptimizerParams("SGD", learning_rate=1), ["learning_rate"], "learning_rate"),
        (OptimizerParams("SGD", global_clipnorm=1), ["global_clipnorm"], "norm_to_val"),
        (OptimizerParams("SGD", use_ema=True), ["use_ema"], "task.train.ema_decay"),
        (
            OptimizerParams("SGD", loss_scale_factor=2.0),
            ["loss_scale_factor"],
            "not scale the loss",
        ),
        (OptimizerParams("RMSpropFromOne"), "RMSpropFromOne", "'RMSpropFromOnes'"),
        (OptimizerParams("SGD", momentum=2.0), None, ""),
        ("Adam", "Adam", ""),
    ],
)
def test_optimizers_that_keras_lacks_are_refused(optimizer, got, hint):
    with fails() as info:
        make_optimizer(optimizer, 0.1)
    assert info.value.path.startswith("task.train.optimizer")
    assert got in (None, info.value.got)
    assert hint in info.value.hint


@pytest.mark.parametrize(
    ("schedule", "path"),
    [
        (ScheduleParams("CosinDecay"), "task.train.lr_schedule.name"),
        (ScheduleParams("CosineDecay", steps=3), "task.train.lr_schedule.arguments"),
        (ScheduleParams("CosineDecay"), "task.train.lr_schedule.arguments"),
        ("CosineDecay", "task.train.lr_schedule"),
        # It takes no initial rate.
        (
            ScheduleParams("PiecewiseConstantDecay", boundaries=[3], values=[0.1, 0.2]),
            "task.train.lr_schedule.name",
        ),
    ],
)
def test_schedules_that_keras_lacks_are_refused(schedule: Any, path: str) -> None:
    with fails(path=path):
        make_rate(0.1, schedule)
