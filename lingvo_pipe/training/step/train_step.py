"""One training step as one TensorFlow function."""

from collections.abc import Iterator, Sequence

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.garbage import collected_seldom
from lingvo_pipe.core.nests import on_this_host
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.training.optim.gradient_clipping import global_norm
from lingvo_pipe.training.run.metrics_log import check_names
from lingvo_pipe.training.step.train_state import TrainState
from lingvo_pipe.training.task.base_task import BaseTask

LEARNING_RATE = "learning_rate"
GRADIENT_NORM = "gradient_norm"


def with_own_metrics(
    metrics: NestedMap, rate: tf.Tensor, norm: tf.Tensor, weight: tf.Tensor
) -> NestedMap:
    """Returns a task's metrics, learning rate and gradient norm, on this host.

    Raises:
        ValueError: if a metric has one of these names, or one that cannot be logged.
    """
    check_names(metrics)
    step_metrics = {LEARNING_RATE: (rate, weight), GRADIENT_NORM: (norm, weight)}
    if taken := sorted(step_metrics.keys() & metrics.keys()):
        raise UserValueError(
            path="ComputeLoss",
            expected=f"metrics other than {' and '.join(step_metrics)}, which each "
            "step reports",
            got=taken,
        )
    return on_this_host(NestedMap(metrics, **step_metrics))


class TrainStep(TrainState):
    """A step that runs forward and backward, and then updates all stages together."""

    def __init__(self, task: BaseTask):
        super().__init__(task)
        (self._learner,) = self.learners.values()
        self._function = tf.function(self._run, autograph=False)

    def Trace(self, batch_spec: NestedMap) -> None:
        """Builds the graph for a batch's tf.TensorSpecs, so wrong shapes fail here."""
        with collected_seldom():
            self._function.get_concrete_function(batch_spec)

    def Steps(self, input_batches: Sequence[NestedMap]) -> Iterator[NestedMap]:
        """Trains a step on each batch, in order, and yields the step's metrics."""
        return map(self, input_batches)

    def __call__(self, input_batch: NestedMap) -> NestedMap:
        """Trains on a batch, and returns metrics as NestedMap(name=(mean, weight)).

        `gradient_norm` is the norm of all gradients before weight decay and clipping.

        Raises:
            tf.errors.OpError: if an operation fails. The error names the layer.
            FloatingPointError: if the loss or a gradient is not finite. The error names
                the layer. No state is changed then.
        """
        try:
            metrics, self._times, is_finite = self._function(input_batch)
        except tf.errors.OpError as error:
            self.diagnose_error(error, [input_batch])
        if not is_finite:
            raise self.not_finite_error(0, float(metrics.loss[0]), input_batch)
        return metrics

    @property
    def schedule(self) -> Schedule:
        """The schedule of the last step."""
        return self.task.pipeline.schedule

    def _run(
        self, input_batch: NestedMap
    ) -> tuple[NestedMap, list[tf.Tensor], tf.Tensor]:
        task = self.task
        learning_rate = tf.identity(self._learner.learning_rate)
        with ForwardContext(step=self.global_step.read_value()):
            result = task.ComputeGradients(task.vars, input_batch)
        gradients = self.gradients_by_path(task.vars, result.gradients)
        trained_gradients = {path: gradients[path] for path in self.trained}
        variables = list(self.trained.values())
        norm = global_norm(list(trained_gradients.values()), variables)
        with tf.device("/CPU:0"):
            norm_and_loss = tf.stack(
                [norm, tf.cast(result.metrics.loss[0], norm.dtype)]
            )
            is_finite = tf.reduce_all(tf.math.is_finite(norm_and_loss))

        def update() -> tf.Tensor:
            self._learner.Apply(trained_gradients)
            with ForwardContext(step=self.global_step.read_value()):
                task.PostTrainingStepUpdate(result.accumulated)
            num_steps = self.global_step.assign_add(1).read_value()
            if self.averages is not None:
                self.averages.Update(num_steps)
            return num_steps

        tf.cond(is_finite, update, self.global_step.read_value)
        one = tf.constant(1.0)
        metrics = with_own_metrics(result.metrics, learning_rate, norm, one)
        return metrics, result.times, is_finite
