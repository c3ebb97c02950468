"""The line that says what is trained where."""

from __future__ import annotations

import math
from collections.abc import Iterable

import tensorflow as tf

from lingvo_pipe.pipeline.devices.device_names import short_name
from lingvo_pipe.training.base_task import BaseTask


def describe_run(task: BaseTask) -> str:
    """Counts a task's parameters and stages, and names its devices."""
    pipeline = task.pipeline
    replicas = [", ".join(map(short_name, own)) for own in pipeline.replicas]
    of_replicas = f"replicas: {len(replicas)}; " if len(replicas) > 1 else ""
    num_trained = _num_parameters(task.TrainedVariables().values())
    every = task.VariablePaths().values()
    num_frozen = _num_parameters(v for v in every if v.trainable) - num_trained
    frozen = f" and {num_frozen:,} frozen" if num_frozen else ""
    return (
        f"parameters: {num_trained:,}{frozen}; {of_replicas}"
        f"stages: {pipeline.num_stages} ({' | '.join(replicas)}); "
        f"micro-batches: {pipeline.params.num_micro_batches}"
    )


def _num_parameters(variables: Iterable[tf.Variable]) -> int:
    return sum(math.prod(variable.shape) for variable in variables)
