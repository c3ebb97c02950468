"""Several training steps as one TensorFlow function.

In it each stage changes its own weights as soon as its gradients are whole, and goes on
with the next step; see `pipeline/schedules/several_steps`. What comes out are the bytes
of as many steps one by one.

Shapes: N steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.forward_context import ForwardContext
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.consecutive_steps import ConsecutiveSteps
from lingvo_pipe.pipeline.plan import by_stage
from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.training.base_task import BaseTask
from lingvo_pipe.training.failed_step import diagnose_error, not_finite_error
from lingvo_pipe.training.gradient_norm import square_sum
from lingvo_pipe.training.learner import counters
from lingvo_pipe.training.step_metrics import (
    GRADIENT_NORM,
    LEARNING_RATE,
    check_metric_names,
)
from lingvo_pipe.training.train_state import TrainState


class StepLoop(TrainState):
    """Forward, backward, update, each stage by itself, several times."""

    def __init__(self, task: BaseTask):
        """Creates the optimizers' slots.

        Args:
            task: what is to be trained.

        Raises:
            ValueError: if its stages can't change their weights by themselves.
        """
        _check_alone(task)
        super().__init__(task, learner_by_stage=True)
        stages = by_stage(task.pipeline.cells, task.pipeline.ends)
        self._stage_of_cell = {c: k for k, cells in enumerate(stages) for c in cells}
        self._paths = {v.ref(): path for path, v in task.VariablePaths().items()}
        self._steps = ConsecutiveSteps(
            task.pipeline, self._feed, task.ComputeLoss, self._update
        )
        self._last: list[tf.Tensor] = []
        self._num_steps = 1
        self._function = tf.function(self._run, autograph=False)

    def Trace(self, batch_spec: NestedMap) -> None:
        """Builds the steps' graph, which finds whatever does not fit together.

        Args:
            batch_spec: the tf.TensorSpec of each part of a batch.
        """
        self._concrete(batch_spec)

    def Steps(self, input_batches: Sequence[NestedMap]) -> Iterator[NestedMap]:
        """Trains on batches of one shape, one after another.

        Yields:
            For each the metrics; see `TrainStep`. All steps are made before the first.

        Raises:
            tf.errors.OpError: if an operation fails; it names the layer.
            FloatingPointError: if a loss or gradient is not finite, after the metrics
                of the steps before. It names the layer, if that can still be seen: some
                stages have made more steps by then, and what was trained must be
                restored.
        """
        self._num_steps = len(input_batches)
        with tf.device("/CPU:0"):
            stacked = tf.nest.map_structure(lambda *x: tf.stack(x), *input_batches)
        spec = tf.nest.map_structure(
            lambda x: tf.TensorSpec(x.shape[1:], x.dtype), stacked
        )
        tables = tf.nest.map_structure(
            tf.convert_to_tensor, self._steps.tables(self._num_steps)
        )
        try:
            metrics, self._last, is_finite = self._concrete(spec)(stacked, tables)
        except tf.errors.OpError as error:
            diagnose_error(error, self, input_batches)
            raise
        metrics = tf.nest.map_structure(lambda x: x.numpy(), metrics)
        for n, batch in enumerate(input_batches):
            if not is_finite[n]:
                raise not_finite_error(self, n, float(metrics.loss[0][n]), batch)
            yield tf.nest.map_structure(lambda x, n=n: x[n], metrics)
        self.global_step.assign_add(self._num_steps)

    def Times(self) -> list[np.ndarray]:
        """When operations ran in the last call; see `DeviceLoop.emit`."""
        return [times.numpy() for times in self._last]

    @property
    def schedule(self) -> Schedule:
        """Of the last call."""
        return self._steps.schedule(self._num_steps)

    def _concrete(self, batch_spec: NestedMap) -> Any:
        """The function for any number of steps."""

        def stacked(spec: Any) -> tf.TensorSpec:
            return tf.TensorSpec([None, *spec.shape], spec.dtype)

        tables = [
            NestedMap(
                rows=stacked(tf.TensorSpec([4], tf.int32)),
                num_slots=tf.TensorSpec(table.num_slots.shape, tf.int32),
            )
            for table in self._steps.tables(1)
        ]
        return self._function.get_concrete_function(
            tf.nest.map_structure(stacked, batch_spec), tables
        )

    def _feed(self, batch: NestedMap) -> tuple[Sequence[Any], NestedMap]:
        return self.task.PipelineInputs(batch), self.task.LossTargets(batch)

    def _run(
        self, batches: NestedMap, tables: list[NestedMap]
    ) -> tuple[NestedMap, list[tf.Tensor], tf.Tensor]:
        first, *others = counters(list(self.learners.values()))
        for other in others:
            for own, shared in zip(other, first, strict=True):
                own.assign(shared)
        result = self._steps.run(
            self.task.Values().pipeline,
            batches,
            self.global_step.read_value(),
            tables,
        )
        check_metric_names(result.metrics)
        rate, *_ = result.notes[next(iter(self.learners))]
        with tf.device("/CPU:0"):
            norms = tf.sqrt(tf.add_n([x for own in result.notes for x in own[1:]]))
            losses = tf.cast(result.metrics.loss[0], norms.dtype)
            is_finite = tf.math.is_finite(norms) & tf.math.is_finite(losses)
        of_steps = {LEARNING_RATE: rate, GRADIENT_NORM: norms}
        ones = tf.ones_like(norms, tf.float32)
        metrics = NestedMap(
            result.metrics, **{name: (x, ones) for name, x in of_steps.items()}
        )
        return metrics, result.times, is_finite

    def _update(
        self,
        cells: Sequence[BaseLayer],
        gradients: Sequence[Any],
        accumulated: Sequence[Any],
        step: tf.Tensor,
    ) -> list[tf.Tensor]:
        """Changes all that a step changes of a stage, if its gradients are finite.

        Returns:
            The learning rate, and the sum of squares of each gradient; nothing if there
            is nothing to train.
        """
        learner = self.learners.get(self._stage_of_cell[cells[0]])
        rate = [tf.identity(learner.learning_rate)] if learner else []
        ours = self._trained_of(cells, gradients)
        squares = []
        for path, gradient in ours.items():
            with tf.device(self.trained[path].device):
                squares.append(square_sum(gradient))

        def update() -> tf.Tensor:
            # Of this branch's graph, all of them: Keras takes no others beside those.
            here = {path: tf.identity(x) for path, x in ours.items()}
            if learner:
                learner.Apply(here)
            with ForwardContext(step=step):
                for cell, totals in zip(cells, accumulated, strict=True):
                    cell.PostTrainingStepUpdate(totals)
            if self.averages is not None:
                paths = {path for cell in cells for path in cell.VariablePaths()}
                self.averages.Update(step + 1, paths)
            return tf.constant(True)

        is_finite = tf.reduce_all(tf.math.is_finite(tf.stack([*squares, 0.0])))
        tf.cond(is_finite, update, lambda: tf.constant(False))
        return [*rate, *squares]

    def _trained_of(
        self, cells: Sequence[BaseLayer], gradients: Sequence[Any]
    ) -> dict[str, tf.Tensor]:
        """The gradients of those variables of cells that are trained, by path."""
        variables = tf.nest.flatten([cell.vars for cell in cells])
        by_path = {
            self._paths[v.ref()]: gradient
            for v, gradient in zip(variables, tf.nest.flatten(gradients), strict=True)
            if gradient is not None
        }
        return {path: x for path, x in by_path.items() if path in self.trained}


def _check_alone(task: BaseTask) -> None:
    """Raises ValueError unless each stage can change its weights by itself."""
    p, faults = task.params.train, []
    if p.clip_gradient_norm_to_value is not None:
        faults.append(
            "clip_gradient_norm_to_value is of all stages' gradients together; set "
            "clip_gradient_single_norm_to_value instead"
        )
    if p.max_skipped_steps:
        faults.append(
            "max_skipped_steps leaves all weights as they are, and by then other "
            "stages have changed theirs; set it to 0"
        )
    if type(task).ComputeGradients is not BaseTask.ComputeGradients:
        faults.append(
            f"{type(task).__name__}.ComputeGradients is of a single step; leave it out"
        )
    for layer in (task, task.pipeline):
        if type(layer).PostTrainingStepUpdate is not BaseLayer.PostTrainingStepUpdate:
            faults.append(
                f"{type(layer).__name__}.PostTrainingStepUpdate is of all stages "
                "together; put it into a cell"
            )
    if faults:
        raise ValueError(
            "With task.train.steps_per_loop above 1 each stage changes its own "
            f"weights; {'; '.join(faults)}. Or set steps_per_loop to 1."
        )
