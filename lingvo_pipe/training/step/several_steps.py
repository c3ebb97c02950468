"""Several training steps as one TensorFlow function.

Each stage updates its own weights as soon as its gradients are complete, and starts the
next step (see `pipeline/schedules/several_steps`). The results have the same bytes as
single steps.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError, raise_problems
from lingvo_pipe.core.garbage import collected_seldom
from lingvo_pipe.core.nests import spec_of
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.execution.pipeline_spec import by_stage
from lingvo_pipe.pipeline.pipeline_steps import PipelineSteps
from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.schedules.table import FedTable
from lingvo_pipe.training.optim.gradient_clipping import square_sums
from lingvo_pipe.training.optim.learner import counters
from lingvo_pipe.training.step.train_state import TrainState
from lingvo_pipe.training.step.train_step import with_own_metrics
from lingvo_pipe.training.task.base_task import BaseTask


class SeveralSteps(TrainState):
    """Several training steps in one call, in which each stage updates its own weights.

    Raises:
        ValueError: if the task or its params need all stages for an update.
    """

    def __init__(self, task: BaseTask):
        _check_stages_are_independent(task)
        super().__init__(task, learner_by_stage=True)
        stages = by_stage(task.pipeline.cells, task.pipeline.boundaries)
        self._stage_of_cell = {c: k for k, cells in enumerate(stages) for c in cells}
        self._steps = PipelineSteps(
            task.pipeline,
            lambda batch: (task.PipelineInputs(batch), task.LossTargets(batch)),
            task.ComputeLoss,
            self._update,
        )
        self._num_steps = 1
        self._function = tf.function(self._run, autograph=False)

    def Trace(self, batch_spec: NestedMap) -> None:
        """Builds the graph for a batch's tf.TensorSpecs, so wrong shapes fail here."""
        with collected_seldom():
            self._concrete(batch_spec)

    def Steps(self, input_batches: Sequence[NestedMap]) -> Iterator[NestedMap]:
        """Trains on batches of one shape in order, and yields each batch's metrics.

        The metrics are as in `TrainStep`. All steps run before the first metrics are
        yielded.

        Raises:
            tf.errors.OpError: if an operation fails. The error names the layer.
            FloatingPointError: if a loss or gradient is not finite. The metrics of
                earlier steps are yielded before. Some stages have run later steps, so
                the caller must restore the state.
        """
        self._num_steps = len(input_batches)
        with tf.device("/CPU:0"):
            stacked = tf.nest.map_structure(lambda *x: tf.stack(x), *input_batches)
        spec = tf.nest.map_structure(spec_of, input_batches[0])
        tables = self._steps.tables(self._num_steps)
        tables = tf.nest.map_structure(tf.convert_to_tensor, tables)
        try:
            metrics, self._times, is_finite = self._concrete(spec)(stacked, tables)
        except tf.errors.OpError as error:
            self.diagnose_error(error, input_batches)
        metrics = tf.nest.map_structure(lambda x: x.numpy(), metrics)
        for n, batch in enumerate(input_batches):
            if not is_finite[n]:
                raise self.not_finite_error(n, float(metrics.loss[0][n]), batch)
            yield tf.nest.map_structure(lambda x, n=n: x[n], metrics)
        self.global_step.assign_add(self._num_steps)

    @property
    def schedule(self) -> Schedule:
        """The schedule of the last call."""
        return self._steps.schedule(self._num_steps)

    def _concrete(self, batch_spec: NestedMap) -> Any:
        batches = tf.nest.map_structure(
            lambda x: tf.TensorSpec([None, *x.shape], x.dtype), batch_spec
        )
        return self._function.get_concrete_function(batches, self._steps.table_specs)

    def _run(
        self, batches: NestedMap, tables: list[FedTable]
    ) -> tuple[NestedMap, Sequence[tf.Tensor], tf.Tensor]:
        shared_counters, *later = counters(list(self.learners.values()))
        for learner_counters in later:
            for counter, shared in zip(learner_counters, shared_counters, strict=True):
                counter.assign(shared)
        theta, step = self.task.vars.pipeline, self.global_step.read_value()
        result = self._steps.run(theta, batches, step, tables)
        rate = result.notes[next(iter(self.learners))][0]
        with tf.device("/CPU:0"):
            norms = tf.sqrt(tf.add_n([x for notes in result.notes for x in notes[1:]]))
            losses = tf.cast(result.metrics.loss[0], norms.dtype)
            is_finite = tf.math.is_finite(norms) & tf.math.is_finite(losses)
        weights = tf.ones_like(norms, tf.float32)
        metrics = with_own_metrics(result.metrics, rate, norms, weights)
        return metrics, result.times, is_finite

    def _update(
        self,
        cells: Sequence[BaseLayer],
        gradients: Sequence[Any],
        accumulated: Sequence[Any],
        step: tf.Tensor,
    ) -> list[tf.Tensor]:
        """Updates the state of a stage if its gradients are finite.

        Returns the learning rate, and the sum of squares of each gradient. The list is
        empty if the stage has nothing to train.
        """
        learner = self.learners.get(self._stage_of_cell[cells[0]])
        rate = [tf.identity(learner.learning_rate)] if learner else []
        by_path = self.gradients_by_path([cell.vars for cell in cells], gradients)
        # In the model's order, in which TrainStep adds the sums of squares.
        stage_gradients = {
            path: by_path[path] for path in self.trained if path in by_path
        }
        variables = [self.trained[path] for path in stage_gradients]
        squares = square_sums(list(stage_gradients.values()), variables)

        def update() -> tf.Tensor:
            if learner:
                learner.Apply(stage_gradients)
            with ForwardContext(step=step):
                for cell, accumulators in zip(cells, accumulated, strict=True):
                    cell.PostTrainingStepUpdate(accumulators)
            if self.averages is not None:
                paths = {path for cell in cells for path in cell.VariablePaths()}
                self.averages.Update(step + 1, paths)
            return tf.constant(True)

        is_finite = tf.reduce_all(tf.math.is_finite(tf.stack([*squares, 0.0])))
        tf.cond(is_finite, update, lambda: tf.constant(False))
        return [*rate, *squares]


def _check_stages_are_independent(task: BaseTask) -> None:
    p = task.params.train
    rules = {
        "clip_gradient_norm_to_value": "0, since it needs the gradients of all stages; "
        "set clip_gradient_single_norm_to_value instead",
        "max_skipped_steps": "0, since stages cannot undo each other's updates",
        "offload_slots": "False, since a device's loop reaches only its own variables",
    }
    problems = [
        UserValueError(path=f"task.train.{name}", expected=expected, got=p.Get(name))
        for name, expected in rules.items()
        if p.Get(name)
    ]
    if type(task).ComputeGradients is not BaseTask.ComputeGradients:
        path = f"{type(task).__name__}.ComputeGradients"
        expected = "none, since it computes a single step"
        problems.append(UserValueError(path=path, expected=expected))
    for layer in (task, task.pipeline):
        if layer.updates_after_step:
            path = f"{type(layer).__name__}.PostTrainingStepUpdate"
            expected = "none, since it needs all stages; move it into a cell"
            problems.append(UserValueError(path=path, expected=expected))
    raise_problems(
        problems,
        "With task.train.steps_per_loop above 1 each stage updates its own weights. "
        "Set it to 1 otherwise.",
    )
