"""Optimizers and learning-rate schedules, Keras's and a few more, chosen by Params.

p.optimizer = OptimizerParams("SGD", momentum=0.9)
p.lr_schedule = ScheduleParams("CosineDecay", decay_steps=1000)
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import keras

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.hyperparams.suggest import did_you_mean
from lingvo_pipe.training.adafactor import Adafactor
from lingvo_pipe.training.learning_rate import Floor, InverseSquareRoot, LinearWarmup
from lingvo_pipe.training.rmsprop import RMSpropFromOnes

# What the names of an optimizer's own variables begin with.
LEARNER_NAME = "learner"

# Arguments of Keras's optimizers, and our params that are for the same.
_PARAM_FOR = {
    "learning_rate": "learning_rate",
    "global_clipnorm": "clip_gradient_norm_to_value",
    "clipnorm": "clip_gradient_single_norm_to_value",
    "use_ema": "ema_decay",
    "ema_momentum": "ema_decay",
    "ema_overwrite_frequency": "ema_decay",
}


def _named(name: str, kind: str, arguments: dict[str, Any]) -> Params:
    p = Params()
    p.Define("name", name, f"Name of the {kind}.")
    p.Define("arguments", arguments, "Its arguments by name.")
    return p


def OptimizerParams(name: str, **arguments: Any) -> Params:
    """Names an optimizer of `keras.optimizers`, or RMSpropFromOnes, and its arguments.

    Adafactor is ours, see `adafactor`, with Keras's arguments. The learning rate,
    clipping by norms and moving averages of weights are not among the arguments: they
    are the learner's.
    """
    return _named(name, "optimizer", arguments)


def ScheduleParams(name: str, **arguments: Any) -> Params:
    """Names a schedule and its arguments.

    It is one of `keras.optimizers.schedules`, or InverseSquareRoot, or LinearWarmup or
    Floor, whose argument `schedule` is ScheduleParams too. The initial learning rate is
    not among the arguments: it is the learner's learning_rate.
    """
    return _named(name, "schedule", arguments)


def make_optimizer(
    p: Params, learning_rate: float, schedule: Params | None
) -> keras.optimizers.Optimizer:
    """Makes the optimizer that params name.

    Args:
        p: from `OptimizerParams`.
        learning_rate: constant, or where the schedule starts.
        schedule: from `ScheduleParams`, or None.

    Raises:
        ValueError: if there is no such optimizer or schedule, or it does not accept
            the arguments.
    """
    rate: Any = learning_rate
    if schedule is not None:
        rate = _make_schedule(schedule, learning_rate)
    # Keras numbers the names that it chooses itself, within each process.
    given = {"name": LEARNER_NAME, "learning_rate": rate}
    return _make(optimizer_classes(), p, given)


def optimizer_classes() -> dict[str, type]:
    """Returns the optimizers that params can name, Keras's and ours, by name."""
    classes = _classes(keras.optimizers, keras.optimizers.Optimizer)
    return classes | {"Adafactor": Adafactor, "RMSpropFromOnes": RMSpropFromOnes}


def _make_schedule(p: Any, initial_learning_rate: float) -> Any:
    """Makes a schedule, and those among its arguments."""
    module = keras.optimizers.schedules
    classes = _classes(module, module.LearningRateSchedule)
    ours = (Floor, InverseSquareRoot, LinearWarmup)
    classes |= {each.__name__: each for each in ours}
    given: dict[str, Any] = {"initial_learning_rate": initial_learning_rate}
    inner = _checked(p).arguments.get("schedule")
    if inner is None:
        return _make(classes, p, given)
    p = p.Copy()
    p.arguments["schedule"] = _make_schedule(inner, initial_learning_rate)
    return _make(classes, p, given)


def _classes(module: ModuleType, base: type) -> dict[str, type]:
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, base) and value is not base
    }


def _checked(p: Any) -> Params:
    if not isinstance(p, Params):
        raise ValueError(
            "optimizer and lr_schedule must be Params; got "
            f"{p!r}. Use OptimizerParams(name, ...) and ScheduleParams(name, ...)."
        )
    return p


def _make(classes: Mapping[str, type], p: Any, given: dict[str, Any]) -> Any:
    p = _checked(p)
    if p.name not in classes:
        raise ValueError(
            f"There is no {p.name!r}.{did_you_mean(p.name, classes)} "
            f"Choose one of {sorted(classes)}."
        )
    accepted = set(inspect.signature(classes[p.name]).parameters)
    accepted -= {"kwargs", "name", *given, *_PARAM_FOR}
    if unknown := sorted(set(p.arguments) - accepted):
        ours = sorted({_PARAM_FOR[name] for name in unknown if name in _PARAM_FOR})
        raise ValueError(
            f"{p.name} does not take {unknown} as arguments. It takes "
            f"{sorted(accepted)}."
            + "".join(f" Set task.train.{name} instead." for name in ours)
        )
    try:
        return classes[p.name](**given, **p.arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{p.name} must be given arguments that it accepts; got "
            f"{dict(p.arguments)}: {error}"
        ) from error
