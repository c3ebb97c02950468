"""What is to be expected of the step that a run profiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.planner.expected_step import expected_step
from lingvo_pipe.training.planned_step import PlannedStep


def planned_for_profile(
    model: Params, pipeline: PipeliningLayer, data: Any, log: Callable[[str], None]
) -> PlannedStep | None:
    """The planner's prediction; None, and a line that says why, if it has none.

    Args:
        model: what is trained.
        pipeline: the model's.
        data: the input that it is trained on.
        log: takes a line of text for the user.
    """
    if model.task.train.steps_per_loop > 1:
        log(
            "The step is profiled without a plan: one of several steps in a call is "
            "run by another schedule. Set task.train.steps_per_loop to 1 for a plan."
        )
        return None
    batch_size, devices = model.input.batch_size, model.task.pipeline.devices
    try:
        return expected_step(
            model.task, pipeline, data.element_spec, batch_size, devices
        )
    except (ValueError, tf.errors.OpError) as error:
        log(f"The step is profiled without a plan: {error}")
        return None
