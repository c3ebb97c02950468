"""One training step as one TensorFlow function."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from lingvo_pipe.layers.forward_context import ForwardContext
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.training.base_task import BaseTask
from lingvo_pipe.training.failed_step import diagnose_error, not_finite_error
from lingvo_pipe.training.gradient_norm import global_norm
from lingvo_pipe.training.step_metrics import (
    GRADIENT_NORM,
    LEARNING_RATE,
    check_metric_names,
)
from lingvo_pipe.training.train_state import TrainState


class TrainStep(TrainState):
    """Forward, backward, update of all stages together."""

    def __init__(self, task: BaseTask):
        super().__init__(task)
        (self._learner,) = self.learners.values()
        self._times: list[tf.Tensor] = []
        self._function = tf.function(self._run, autograph=False)

    def Trace(self, batch_spec: NestedMap) -> None:
        """Builds the step's graph, which finds whatever does not fit together.

        Args:
            batch_spec: the tf.TensorSpec of each part of a batch.
        """
        self._function.get_concrete_function(batch_spec)

    def Steps(self, input_batches: Sequence[NestedMap]) -> Iterator[NestedMap]:
        """Trains on batches, one after another; see `__call__`."""
        return map(self, input_batches)

    def __call__(self, input_batch: NestedMap) -> NestedMap:
        """Trains on a batch.

        Returns:
            NestedMap(name=(mean, weight)); in the same form `learning_rate`, and
            `gradient_norm`, that of all gradients before weight decay and clipping.

        Raises:
            tf.errors.OpError: if an operation fails; it names the layer.
            FloatingPointError: if the loss or a gradient is not finite, which changes
                nothing; it names the layer.
        """
        try:
            metrics, self._times, is_finite = self._function(input_batch)
        except tf.errors.OpError as error:
            diagnose_error(error, self, [input_batch])
            raise
        if not is_finite:
            raise not_finite_error(self, 0, float(metrics.loss[0]), input_batch)
        return metrics

    def Times(self) -> list[np.ndarray]:
        """When the devices' operations ran in the last step; see `DeviceLoop.emit`."""
        return [times.numpy() for times in self._times]

    @property
    def schedule(self) -> Schedule:
        """Of the last step."""
        return self.task.pipeline.schedule

    def _run(
        self, input_batch: NestedMap
    ) -> tuple[NestedMap, list[tf.Tensor], tf.Tensor]:
        task = self.task
        learning_rate = tf.identity(self._learner.learning_rate)
        with ForwardContext(step=self.global_step.read_value()):
            result = task.ComputeGradients(task.Values(), input_batch)
        check_metric_names(result.metrics)
        gradients = _by_path(task, result.gradients)
        ours = {path: gradients[path] for path in self.trained}
        norm = global_norm(list(ours.values()), list(self.trained.values()))
        with tf.device("/CPU:0"):
            both = tf.stack([norm, tf.cast(result.metrics.loss[0], norm.dtype)])
            is_finite = tf.reduce_all(tf.math.is_finite(both))

        def update() -> tf.Tensor:
            # Of this branch's graph, all of them: Keras takes no others beside those.
            here = {path: _identity(x) for path, x in ours.items()}
            return self._update(here, result.accumulated)

        tf.cond(is_finite, update, self.global_step.read_value)
        of_step = {LEARNING_RATE: learning_rate, GRADIENT_NORM: norm}
        metrics = NestedMap(
            result.metrics, **{k: (x, tf.constant(1.0)) for k, x in of_step.items()}
        )
        return metrics, result.times, is_finite

    def _update(
        self, gradients: dict[str, tf.Tensor], accumulated: NestedMap
    ) -> tf.Tensor:
        """Changes all that a step changes; returns the number of steps."""
        self._learner.Apply(gradients)
        with ForwardContext(step=self.global_step.read_value()):
            self.task.PostTrainingStepUpdate(accumulated)
        num_steps = self.global_step.assign_add(1).read_value()
        if self.averages is not None:
            self.averages.Update(num_steps)
        return num_steps


def _identity(x: tf.Tensor) -> tf.Tensor:
    with tf.device(x.device):
        return tf.identity(x)


def _by_path(task: BaseTask, tree: Any) -> dict[str, tf.Tensor]:
    """Gradients in the structure of `vars`, by the variables' paths."""
    paths = {variable.ref(): path for path, variable in task.VariablePaths().items()}
    gradients = {}
    for variable, gradient in zip(
        tf.nest.flatten(task.vars), tf.nest.flatten(tree), strict=True
    ):
        if gradient is not None:
            gradients[paths[variable.ref()]] = gradient
    return gradients
