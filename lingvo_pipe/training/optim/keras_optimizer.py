"""Optimizers and learning-rate schedules, Keras's and ours, chosen by Params.

p.optimizer = OptimizerParams("SGD", momentum=0.9)
p.lr_schedule = ScheduleParams("CosineDecay", decay_steps=1000)
"""

import inspect
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import keras

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.core.near_names import did_you_mean
from lingvo_pipe.hyperparams import InstantiableParams, Params
from lingvo_pipe.pipeline.execution.updating_in_place import updating_in_place
from lingvo_pipe.schedule import BaseSchedule
from lingvo_pipe.training.optim.optimizers import Adafactor, RMSpropFromOnes
from lingvo_pipe.training.optim.rate_schedules import (
    Floor,
    InverseSquareRoot,
    LinearWarmup,
    Scaled,
)

# Names of an optimizer's own variables begin with this.
LEARNER_NAME = "learner"
# Comes from the params and is not saved. Checkpoints of earlier versions have it.
LEARNING_RATE_NAME = f"{LEARNER_NAME}/learning_rate"

# Arguments of Keras's optimizers that are refused, and what to do instead.
_HINT_FOR = {
    "learning_rate": "Set task.train.learning_rate instead.",
    "global_clipnorm": "Set task.train.clip_gradient_norm_to_value instead.",
    "clipnorm": "Set task.train.clip_gradient_single_norm_to_value instead.",
    **dict.fromkeys(
        ("use_ema", "ema_momentum", "ema_overwrite_frequency"),
        "Set task.train.ema_decay instead.",
    ),
    "loss_scale_factor": "Leave it out: the trainer does not scale the loss, and steps "
    "would be too short by this factor.",
}
# A schedule on which task.train.learning_rate would have no effect.
_WITHOUT_INITIAL_RATE = "PiecewiseConstantDecay"
_PIECES_HINT = (
    "Use schedule.PiecewiseConstantSchedule.Params(), whose values are factors of "
    "task.train.learning_rate, with each boundary one step later."
)


def OptimizerParams(name: str, **arguments: Any) -> Params:
    """Returns params that name an optimizer, with its arguments.

    The optimizer is one of `keras.optimizers`, RMSpropFromOnes, or this library's
    Adafactor, which has the same arguments as Keras's. The learning rate, clipping by
    norms and moving averages of weights are not arguments, but params of the learner.
    There is no `loss_scale_factor`.
    """
    return _named(name, "optimizer", arguments)


def ScheduleParams(name: str, **arguments: Any) -> Params:
    """Returns params that name a schedule, with its arguments.

    The schedule is one of `keras.optimizers.schedules`, InverseSquareRoot, LinearWarmup
    or Floor. LinearWarmup and Floor have an argument `schedule`, which is params of
    another schedule. The initial learning rate is the learner's learning_rate.
    PiecewiseConstantDecay has no initial rate. `PiecewiseConstantSchedule` of
    `lingvo_pipe.schedule` replaces it.
    """
    return _named(name, "schedule", arguments)


def make_optimizer(p: Params, learning_rate: Any) -> keras.optimizers.Optimizer:
    """Makes the optimizer that `p`, from OptimizerParams, describes.

    `learning_rate` is a number, or a schedule from `make_rate`.

    Raises:
        ValueError: if the optimizer does not exist, or does not accept the arguments.
    """
    # Without a name, Keras would number the optimizers of a process.
    fixed_arguments = {"name": LEARNER_NAME, "learning_rate": learning_rate}
    return _make(optimizer_classes(), p, fixed_arguments, "task.train.optimizer")


def make_rate(
    learning_rate: Any, schedule: Params | None, path: str = "task.train.lr_schedule"
) -> Any:
    """Returns the learning rate of an optimizer: a constant, or a schedule.

    If `schedule` is None, the rate is the constant `learning_rate`. Otherwise
    `schedule`, the param at `path`, is either ScheduleParams, whose initial rate is
    `learning_rate`, or params of a class in `lingvo_pipe.schedule`, whose values are
    multiplied by `learning_rate`.

    Raises:
        ValueError: if the schedule does not exist, or does not accept the arguments.
    """
    if schedule is None:
        return learning_rate
    if isinstance(schedule, InstantiableParams):
        if not issubclass(schedule.cls, BaseSchedule):
            raise UserValueError(
                path=path, expected="params of a schedule", got=schedule.cls.__name__
            )
        return Scaled(learning_rate, schedule.Instantiate())
    module = keras.optimizers.schedules
    classes = _classes(module, module.LearningRateSchedule)
    del classes[_WITHOUT_INITIAL_RATE]
    classes |= {cls.__name__: cls for cls in (Floor, InverseSquareRoot, LinearWarmup)}
    return _make(classes, schedule, {"initial_learning_rate": learning_rate}, path)


def optimizer_classes() -> dict[str, type]:
    """Returns the classes of optimizers that params can name, by name."""
    classes = _classes(keras.optimizers, keras.optimizers.Optimizer)
    classes |= {"Adafactor": Adafactor, "RMSpropFromOnes": RMSpropFromOnes}
    return {name: updating_in_place(cls) for name, cls in classes.items()}


def _named(name: str, kind: str, arguments: dict[str, Any]) -> Params:
    p = Params()
    p.Define("name", name, f"Name of the {kind}.")
    p.Define("arguments", arguments, "Its arguments by name.")
    return p


def _classes(module: ModuleType, base: type) -> dict[str, type]:
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, base) and value is not base
    }


def _make(
    classes: Mapping[str, type], p: Any, fixed_arguments: dict[str, Any], path: str
) -> Any:
    if not isinstance(p, Params):
        kind = "Optimizer" if path.endswith("optimizer") else "Schedule"
        raise UserValueError(path=path, expected=f"{kind}Params(name, ...)", got=p)
    if p.name not in classes:
        raise UserValueError(
            path=f"{path}.name",
            expected=f"one of {sorted(classes)}",
            got=p.name,
            names=classes,
            hint=_PIECES_HINT if p.name == _WITHOUT_INITIAL_RATE else "",
        )
    accepted = set(inspect.signature(classes[p.name]).parameters)
    accepted -= {"kwargs", "name", *fixed_arguments, *_HINT_FOR}
    if unknown := sorted(set(p.arguments) - accepted):
        misspelled = sorted(set(unknown) - _HINT_FOR.keys())
        hints = [did_you_mean(name, accepted).strip() for name in misspelled]
        hints += sorted({_HINT_FOR[name] for name in unknown if name in _HINT_FOR})
        raise UserValueError(
            path=f"{path}.arguments",
            expected=f"arguments of {p.name}, {sorted(accepted)}",
            got=unknown,
            hint=" ".join(filter(None, hints)),
        )
    arguments = dict(p.Copy().arguments)
    if (inner := arguments.get("schedule")) is not None:
        inner_path = f"{path}.arguments['schedule']"
        initial = fixed_arguments["initial_learning_rate"]
        arguments["schedule"] = make_rate(initial, inner, inner_path)
    try:
        return classes[p.name](**fixed_arguments, **arguments)
    except (TypeError, ValueError) as error:
        raise UserValueError(
            path=f"{path}.arguments",
            expected=f"arguments that {p.name} accepts",
            got=Words(f"{arguments}: {error}"),
        ) from error
