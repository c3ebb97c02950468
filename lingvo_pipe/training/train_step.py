"""One training step as one TensorFlow function."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np
import tensorflow as tf

from lingvo_pipe.layers.forward_context import ForwardContext
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.diagnosis import may_be_diagnosed
from lingvo_pipe.training.base_task import BaseTask
from lingvo_pipe.training.exponential_moving_average import make_averages
from lingvo_pipe.training.gradient_norm import global_norm
from lingvo_pipe.training.learner import Learner

_LEARNING_RATE = "learning_rate"
_GRADIENT_NORM = "gradient_norm"


class TrainStep:
    """Forward, backward, update; and all the state that a step changes."""

    def __init__(self, task: BaseTask):
        task.CheckAllInPipeline()
        self._task = task
        p, trained = task.params.train, task.TrainedVariables()
        self._trained = trained
        self._learner = Learner(p, trained)
        self._averages = make_averages(p, trained, task.VariablePaths())
        with tf.device("/CPU:0"):
            self.global_step = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._times: list[tf.Tensor] = []
        self._function = tf.function(self._run, autograph=False)

    def Trace(self, batch_spec: NestedMap) -> None:
        """Builds the step's graph, which finds whatever does not fit together.

        Args:
            batch_spec: the tf.TensorSpec of each part of a batch.
        """
        self._function.get_concrete_function(batch_spec)

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
            if may_be_diagnosed(error):
                with contextlib.suppress(FloatingPointError):
                    self._diagnose(input_batch)
            raise
        if not is_finite:
            raise self._not_finite(float(metrics.loss[0]), input_batch)
        return metrics

    def Skip(self) -> None:
        """Counts a step that was not finite as made."""
        self.global_step.assign_add(1)

    def Times(self) -> list[np.ndarray]:
        """When the devices' operations ran in the last step; see `DeviceLoop.emit`."""
        return [times.numpy() for times in self._times]

    def EvalValues(self) -> NestedMap:
        """What to evaluate with: the weights' moving averages where there are any.

        Returns:
            As of `BaseTask.Values`.
        """
        if self._averages is None:
            return self._task.Values()
        return tf.nest.map_structure(self._averages.Value, self._task.vars)

    def StartAveraging(self) -> None:
        """Makes the averages equal to weights that were changed since."""
        if self._averages is not None:
            self._averages.Reset()

    def State(self) -> dict[str, tf.Variable]:
        """Everything that must be saved to go on later, by name."""
        return {
            "global_step": self.global_step,
            **self._task.VariablePaths(),
            **self._learner.State(),
            **(self._averages.State() if self._averages is not None else {}),
        }

    def _run(
        self, input_batch: NestedMap
    ) -> tuple[NestedMap, list[tf.Tensor], tf.Tensor]:
        task = self._task
        learning_rate = tf.identity(self._learner.learning_rate)
        with ForwardContext(step=self.global_step.read_value()):
            result = task.ComputeGradients(task.Values(), input_batch)
        _check_metric_names(result.metrics)
        gradients = _by_path(task, result.gradients)
        ours = {path: gradients[path] for path in self._trained}
        norm = global_norm(list(ours.values()), list(self._trained.values()))
        with tf.device("/CPU:0"):
            both = tf.stack([norm, tf.cast(result.metrics.loss[0], norm.dtype)])
            is_finite = tf.reduce_all(tf.math.is_finite(both))

        def update() -> tf.Tensor:
            # Of this branch's graph, all of them: Keras takes no others beside those.
            here = {path: _identity(x) for path, x in ours.items()}
            return self._update(here, result.accumulated)

        tf.cond(is_finite, update, self.global_step.read_value)
        of_step = {_LEARNING_RATE: learning_rate, _GRADIENT_NORM: norm}
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
            self._task.PostTrainingStepUpdate(accumulated)
        num_steps = self.global_step.assign_add(1).read_value()
        if self._averages is not None:
            self._averages.Update(num_steps)
        return num_steps

    def _diagnose(self, input_batch: NestedMap) -> None:
        with ForwardContext(step=self.global_step.read_value()):
            self._task.Diagnose(self._task.Values(), input_batch)

    def _not_finite(self, loss: float, input_batch: NestedMap) -> FloatingPointError:
        """The error of a step that was not made."""
        what = "a gradient is not" if math.isfinite(loss) else f"the loss is {loss}"
        found = ""
        try:
            self._diagnose(input_batch)
        except FloatingPointError as error:
            found = f": {error}"
        return FloatingPointError(
            "The loss and its gradients must stay finite; in step "
            f"{int(self.global_step) + 1} {what}{found}."
        )


def _identity(x: tf.Tensor) -> tf.Tensor:
    with tf.device(x.device):
        return tf.identity(x)


def _check_metric_names(metrics: NestedMap) -> None:
    if taken := sorted({_LEARNING_RATE, _GRADIENT_NORM} & set(metrics)):
        raise ValueError(
            "A task's metrics must not be called as those that each step reports; got "
            f"{' and '.join(map(repr, taken))}. Rename them in ComputeLoss."
        )


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
