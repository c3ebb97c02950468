"""Keras's optimizers and learning-rate schedules, chosen by Params.

p.optimizer = OptimizerParams("SGD", momentum=0.9)
p.lr_schedule = ScheduleParams("CosineDecay", decay_steps=1000)
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

import keras

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.hyperparams.suggest import did_you_mean


def _named(name: str, kind: str, arguments: dict[str, Any]) -> Params:
    p = Params()
    p.Define("name", name, f"Name of the {kind} in Keras.")
    p.Define("arguments", arguments, "Its arguments by name.")
    return p


def OptimizerParams(name: str, **arguments: Any) -> Params:
    """Names an optimizer of `keras.optimizers` and its arguments."""
    return _named(name, "optimizer", arguments)


def ScheduleParams(name: str, **arguments: Any) -> Params:
    """Names a schedule of `keras.optimizers.schedules` and its arguments.

    The initial learning rate is not among them: it is the learner's learning_rate.
    """
    return _named(name, "schedule", arguments)


def make_optimizer(
    p: Params, learning_rate: float, schedule: Params | None, clip_norm: float | None
) -> keras.optimizers.Optimizer:
    """Makes the optimizer that params name.

    Args:
        p: from `OptimizerParams`.
        learning_rate: constant, or where the schedule starts.
        schedule: from `ScheduleParams`, or None.
        clip_norm: the largest global norm of the gradients, or None.

    Raises:
        ValueError: if Keras has no such optimizer or schedule, or it does not accept
            the arguments.
    """
    rate: Any = learning_rate
    if schedule is not None:
        rate = _make(
            keras.optimizers.schedules,
            keras.optimizers.schedules.LearningRateSchedule,
            schedule,
            {"initial_learning_rate": learning_rate},
        )
    # Keras numbers the names that it chooses itself, within each process.
    given = {"name": "learner", "learning_rate": rate, "global_clipnorm": clip_norm}
    return _make(keras.optimizers, keras.optimizers.Optimizer, p, given)


def _make(module: ModuleType, base: type, p: Params, given: dict[str, Any]) -> Any:
    if not isinstance(p, Params):
        raise ValueError(
            "optimizer and lr_schedule must be Params; got "
            f"{p!r}. Use OptimizerParams(name, ...) and ScheduleParams(name, ...)."
        )
    classes = {
        name: value
        for name, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, base) and value is not base
    }
    if p.name not in classes:
        raise ValueError(
            f"{module.__name__} has no {p.name!r}.{did_you_mean(p.name, classes)} "
            f"Choose one of {sorted(classes)}."
        )
    accepted = set(inspect.signature(classes[p.name]).parameters)
    accepted -= {"kwargs", "name", *given}
    if unknown := sorted(set(p.arguments) - accepted):
        raise ValueError(
            f"{p.name} does not take {unknown} as arguments. It takes "
            f"{sorted(accepted)}."
        )
    try:
        return classes[p.name](**given, **p.arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{p.name} must be given arguments that it accepts; got "
            f"{dict(p.arguments)}: {error}"
        ) from error
