"""The state that a training step changes."""

import contextlib
import math
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from lingvo_pipe.core.errors import UserNumberError, UserValueError, Words
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.core.layer_tree import unregularized_paths
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.debug.diagnosis import may_be_diagnosed, naming
from lingvo_pipe.pipeline.execution.host_slots import check_host_slots
from lingvo_pipe.pipeline.execution.pipeline_spec import by_stage
from lingvo_pipe.training.checkpoint.whole_weights import (
    check_elementwise,
    join_pieces,
)
from lingvo_pipe.training.optim.exponential_moving_average import make_averages
from lingvo_pipe.training.optim.keras_optimizer import LEARNER_NAME
from lingvo_pipe.training.optim.learner import Learner, learner_state
from lingvo_pipe.training.task.base_task import BaseTask


class TrainState:
    """Weights, the optimizer's state, moving averages, and the number of steps.

    Moving averages, and slots of some optimizers, start as copies of the weights.

    Attributes:
        trained: variables that learners update, by path.
        learners: learners by stage, one for each stage that has variables to train, or
            a single learner of all stages, under 0.
    """

    def __init__(self, task: BaseTask, learner_by_stage: bool = False):
        task.CheckAllInPipeline()
        check_elementwise(task.params.train, task)
        self.task = task
        p, self.trained = task.params.train, task.TrainedVariables()
        if p.offload_slots:
            devices = [v.device for v in self.trained.values()]
            check_host_slots(devices, "task.train.offload_slots")
        if learner_by_stage:
            self.learners = _learners_by_stage(task, self.trained)
        else:
            undecayed = unregularized_paths(task)
            self.learners = {0: Learner(p, self.trained, undecayed=undecayed)}
        self._paths = {v.ref(): path for path, v in task.VariablePaths().items()}
        self.averages = make_averages(p, self.trained, task.VariablePaths())
        with tf.device("/CPU:0"):
            self.global_step = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._times: list[tf.Tensor] = []

    def Skip(self) -> None:
        """Counts a step that was skipped."""
        self.global_step.assign_add(1)

    def EvalValues(self) -> NestedMap:
        """Returns the weights for evaluations: moving averages, where there are any."""
        if self.averages is None:
            return self.task.Values()
        return tf.nest.map_structure(self.averages.Value, self.task.vars)

    def Times(self) -> list[np.ndarray]:
        """Returns `[N, 3]` per device: when operations waited, started and ended."""
        return [times.numpy() for times in self._times]

    def gradients_by_path(self, variables: Any, gradients: Any) -> dict[str, tf.Tensor]:
        """Returns the gradients that are not None, by their variables' paths."""
        flat = zip(tf.nest.flatten(variables), tf.nest.flatten(gradients), strict=True)
        return {self._paths[v.ref()]: x for v, x in flat if x is not None}

    def diagnose_error(
        self, error: tf.errors.OpError, batches: Sequence[NestedMap]
    ) -> NoReturn:
        """Reruns failed steps. Raises the failing layer's error, or else `error`."""
        if may_be_diagnosed(error):
            for n, batch in enumerate(batches):
                with contextlib.suppress(FloatingPointError):
                    self._diagnose(n, batch)
        with naming(f"step {int(self.global_step) + 1}"):
            raise error

    def not_finite_error(
        self, n: int, loss: float, batch: NestedMap
    ) -> FloatingPointError:
        """Returns an error about step global_step + n + 1, which was not finite."""
        problem = "a gradient is not" if math.isfinite(loss) else f"the loss is {loss}"
        layer = ""
        try:
            self._diagnose(n, batch)
        except FloatingPointError as error:
            layer = f": {error}"
        return UserNumberError(
            "The loss and its gradients must stay finite; in step "
            f"{int(self.global_step) + n + 1} {problem}{layer}."
        )

    def _diagnose(self, n: int, batch: NestedMap) -> None:
        with ForwardContext(step=self.global_step.read_value() + n):
            self.task.Diagnose(self.task.Values(), batch)

    def State(self) -> dict[str, tf.Variable]:
        """Returns all variables for checkpoints, by name, with pieces joined."""
        state = {
            "global_step": self.global_step,
            **self.task.VariablePaths(),
            **learner_state(list(self.learners.values())),
            **(self.averages.State() if self.averages is not None else {}),
        }
        return join_pieces(self.task, state)


def _learners_by_stage(
    task: BaseTask, trained: dict[str, tf.Variable]
) -> dict[int, Learner]:
    pipeline, p, learners = task.pipeline, task.params.train, {}
    undecayed = unregularized_paths(task)
    stages = by_stage(pipeline.cells, pipeline.boundaries)
    for k, (device, cells) in enumerate(zip(pipeline.devices, stages, strict=True)):
        paths = [path for cell in cells for path in cell.VariablePaths()]
        if stage_variables := {
            path: trained[path] for path in paths if path in trained
        }:
            with tf.device(device):
                learners[k] = Learner(p, stage_variables, list(trained), undecayed)
    # `counters` finds by their names the variables that learners share.
    names = {
        name for learner in learners.values() for name, _ in learner.OwnVariables()
    }
    if odd := sorted(n for n in names if not n.startswith(f"{LEARNER_NAME}/")):
        raise UserValueError(
            path="task.train.optimizer",
            expected="one whose variables have names, because with steps_per_loop "
            "above 1 each stage updates its own weights",
            got=Words(", ".join(odd)),
            hint="Choose another, or set task.train.steps_per_loop to 1.",
        )
    return learners
