"""A learning-rate schedule stretched to another number of steps."""

from __future__ import annotations

from typing import Any

from lingvo_pipe.hyperparams import InstantiableParams, Params
from lingvo_pipe.layers.drop_path import DropPathLayer


def train_for(task_params: InstantiableParams, num_steps: int) -> None:
    """Sets how long a task is trained, with all that counts its steps.

    The learning rate, and how much drop-path drops, then go through in that time what
    they did in the task's own number of steps.

    Args:
        task_params: of a task that says its `max_steps`.
        num_steps: its number of steps now.

    Raises:
        ValueError: if the task does not say it.
    """
    train = task_params.train
    if train.max_steps is None:
        raise ValueError(
            "A model must say for how many steps its learning rate is made; "
            "task.train.max_steps is None. Set it by --model_params_override."
        )
    factor = num_steps / train.max_steps
    train.max_steps = num_steps
    if train.lr_schedule is not None:
        _stretch(train.lr_schedule, factor)

    def stretch_drops(unused_path: str, value: Any) -> None:
        is_drop_path = getattr(value, "cls", None) is DropPathLayer
        if is_drop_path and value.num_steps is not None:
            value.num_steps = _scaled(value.num_steps, factor)

    task_params.pipeline.Visit(lambda path, value: None, exit=stretch_drops)


def _stretch(schedule: Params, factor: float) -> None:
    """Steps are `boundaries`, and whatever ends in _steps."""
    for name, value in schedule.arguments.items():
        if name == "boundaries":
            schedule.arguments[name] = [_scaled(each, factor) for each in value]
        elif name.endswith("_steps"):
            schedule.arguments[name] = _scaled(value, factor)
        elif name == "schedule":
            _stretch(value, factor)


def _scaled(num_steps: float, factor: float) -> int:
    return max(1, round(num_steps * factor))
