"""All the state that a training step changes."""

from __future__ import annotations

import tensorflow as tf

from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.plan import by_stage
from lingvo_pipe.training.base_task import BaseTask
from lingvo_pipe.training.exponential_moving_average import make_averages
from lingvo_pipe.training.keras_optimizer import LEARNER_NAME
from lingvo_pipe.training.learner import Learner, learner_state


class TrainState:
    """Weights, the optimizer's state, moving averages, the number of steps.

    Attributes:
        task: what is trained.
        trained: the variables that learners update, by path.
        learners: one for all stages together; or one for each, by stage, that has
            variables to train.
        averages: of the weights, or None.
        global_step: the number of steps made.
    """

    def __init__(self, task: BaseTask, learner_by_stage: bool = False):
        """Creates what does not exist yet.

        Args:
            task: what is to be trained.
            learner_by_stage: whether stages change their weights by themselves.
        """
        task.CheckAllInPipeline()
        self.task = task
        p, self.trained = task.params.train, task.TrainedVariables()
        if learner_by_stage:
            self.learners = _learners_by_stage(task, self.trained)
        else:
            self.learners = {0: Learner(p, self.trained)}
        self.averages = make_averages(p, self.trained, task.VariablePaths())
        with tf.device("/CPU:0"):
            self.global_step = tf.Variable(0, dtype=tf.int64, trainable=False)

    def Skip(self) -> None:
        """Counts a step that was not finite as made."""
        self.global_step.assign_add(1)

    def EvalValues(self) -> NestedMap:
        """What to evaluate with: the weights' moving averages where there are any.

        Returns:
            As of `BaseTask.Values`.
        """
        if self.averages is None:
            return self.task.Values()
        return tf.nest.map_structure(self.averages.Value, self.task.vars)

    def StartAveraging(self) -> None:
        """Makes the averages equal to weights that were changed since."""
        if self.averages is not None:
            self.averages.Reset()

    def State(self) -> dict[str, tf.Variable]:
        """Everything that must be saved to go on later, by name."""
        return {
            "global_step": self.global_step,
            **self.task.VariablePaths(),
            **learner_state(list(self.learners.values())),
            **(self.averages.State() if self.averages is not None else {}),
        }


def _learners_by_stage(
    task: BaseTask, trained: dict[str, tf.Variable]
) -> dict[int, Learner]:
    """A learner for each stage, with all that it has on the stage's device."""
    pipeline, learners = task.pipeline, {}
    stages = by_stage([cell.VariablePaths() for cell in pipeline.cells], pipeline.ends)
    for k, (device, cells) in enumerate(zip(pipeline.devices, stages, strict=True)):
        paths = [path for of_cell in cells for path in of_cell if path in trained]
        own = {path: trained[path] for path in paths}
        if own:
            with tf.device(device):
                learners[k] = Learner(task.params.train, own, list(trained))
    _check_named([path for x in learners.values() for path, _ in x.OwnVariables()])
    return learners


def _check_named(paths: list[str]) -> None:
    """Raises ValueError unless it can be told which variables learners share."""
    odd = sorted({path for path in paths if not path.startswith(f"{LEARNER_NAME}/")})
    if odd:
        raise ValueError(
            "Where each stage changes its own weights, the optimizer must name all "
            f"that it keeps; this one has {', '.join(odd)}. Choose another as task."
            "train.optimizer, or set task.train.steps_per_loop to 1."
        )
