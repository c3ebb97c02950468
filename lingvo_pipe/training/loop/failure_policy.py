"""The policy of a run when a step goes wrong.

    the loss or a gradient is not finite   skip the step, but end the run after more
                                           than max_skipped_steps consecutive ones
    a variable to be saved is not finite   end the run without saving it
    the loss has a spike                   roll back to the newest checkpoint and skip
                                           the batches since, but end the run if it has
                                           rolled back there max_rollbacks times
    the batches end before max_steps, or   save, unless the run may roll back, then
      an example's weight is negative      end the run

The first three end the run with a FloatingPointError, the last with a ValueError.
"""

from collections.abc import Callable, Iterator

import tensorflow as tf

from lingvo_pipe.core.errors import UserNumberError, UserValueError, Words
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.checkpoint.checkpoint_files import steps_in
from lingvo_pipe.training.run.run_directory import RunDirectory
from lingvo_pipe.training.stability.loss_spikes import LossSpikeError
from lingvo_pipe.training.stability.non_finite import NonFiniteVariables, SkippedSteps
from lingvo_pipe.training.stability.skipped_batches import SkippedBatches
from lingvo_pipe.training.step.several_steps import SeveralSteps
from lingvo_pipe.training.step.train_step import TrainStep
from lingvo_pipe.training.task.input_checks import check_weights

_RATE = "task.train.learning_rate"
_NORM = "clip_gradient_norm_to_value"
_SINGLE_NORM = "clip_gradient_single_norm_to_value"


class FailurePolicy:
    """A policy for bad steps: skip the step, roll back, or end the run."""

    def __init__(
        self,
        step: TrainStep | SeveralSteps,
        directory: RunDirectory,
        log: Callable[[str], None],
    ):
        self._params = step.task.params.train
        self._step, self._directory, self._log = step, directory, log
        self._skipped_steps = SkippedSteps(self._params)
        self._non_finite = NonFiniteVariables(step.State())
        self.skipped_batches = SkippedBatches(directory.skipped_batches_path)

    def state(self) -> dict[str, tf.Variable]:
        """Returns the variables that checkpoints must hold, by name."""
        return self._skipped_steps.state()

    def train(self, group: list[NestedMap]) -> Iterator[dict[str, float]]:
        """Trains on batches, and yields each step's metrics, {} for a skipped step.

        Raises:
            FloatingPointError: if a step is not finite and may not be skipped.
        """
        try:
            for metrics in self._step.Steps(group):
                yield {name: float(mean) for name, (mean, _) in metrics.items()}
                self._skipped_steps.add_finite()
        except FloatingPointError as error:
            if not self._skipped_steps.may_skip():
                raise UserNumberError(str(error), hint=self._hint()) from error
            self._step.Skip()
            self._log(f"Skipped a step. {error}")
            yield {}

    def check_variables(self, step: int) -> None:
        """Raises FloatingPointError if a variable to be saved is not finite."""
        if names := self._non_finite.names():
            raise UserNumberError(
                path=names[0],
                expected=f"finite variables after step {step}",
                got=Words(f"{len(names)} that are not"),
                hint=self._hint(),
            )

    def skip_batches(self, start: int, spike: LossSpikeError) -> None:
        """Makes the run skip the batches between step `start` and the spike.

        Raises:
            FloatingPointError: if the run has rolled back too often.
        """
        max_rollbacks = self._params.max_rollbacks
        if self.skipped_batches.num_after(start) >= max_rollbacks:
            raise UserNumberError(
                f"The loss has a spike: {spike}. The run rolled back to step {start} "
                f"{max_rollbacks} times, the maximum in task.train.max_rollbacks.",
                path="task.train.max_rollbacks",
                hint="Raise task.train.loss_spike_factor or max_rollbacks, or lower "
                "task.train.learning_rate with "
                "--allow_params_change=task.train.learning_rate, and rerun.",
            ) from spike
        self.skipped_batches.skip(start, spike.step)
        self._log(f"Rolled back to step {start}: {spike}. Skipping the batches since.")

    def input_problem(self, group: list[NestedMap], step: int) -> UserValueError | None:
        """Returns an error if `group` has no batch or bad weights, or else None."""
        try:
            for batch in group:
                check_weights(batch, may_be_infinite=True)
        except UserValueError as error:
            return error
        if group:
            return None
        return UserValueError(
            path="TrainBatches",
            expected=f"a batch for each of {self._params.max_steps} steps",
            got=step,
            hint="Repeat the data, or lower --max_steps.",
        )

    def with_saved_step(self, problem: UserValueError, saved: int) -> UserValueError:
        """Returns an error about `problem` and the step that is saved."""
        hint = f"The run is saved after step {saved}."
        return UserValueError(str(problem), path=problem.path, hint=hint)

    def _hint(self) -> str:
        p, clipping = self._params, self._clipping()
        is_saved = bool(steps_in(self._directory.checkpoints_path))
        saved = "The last checkpoint is kept." if is_saved else "Nothing is saved yet."
        one_step = ", with task.train.steps_per_loop 1" * (p.steps_per_loop > 1)
        remedy, accepted = f"lower {_RATE}", _RATE
        if clipping:
            verb = "lower" if p.Get(clipping) else "set"
            remedy += f" or {verb} task.train.{clipping}"
            accepted += f",task.train.{clipping}"
        return (
            f"{saved} If the mini-batch itself has them, correct the data, or raise "
            f"task.train.max_skipped_steps from {p.max_skipped_steps} to skip such "
            f"steps{one_step}; else {remedy}, and accept the change by "
            f"--allow_params_change={accepted}. Then rerun."
        )

    def _clipping(self) -> str:
        """Returns the clipping that is set, or else one that can be, or ""."""
        p, has_loops = self._params, self._params.steps_per_loop > 1
        if is_set := [name for name in (_NORM, _SINGLE_NORM) if p.Get(name)]:
            return is_set[0]
        accumulates = p.optimizer.arguments.get("gradient_accumulation_steps")
        if accumulates or (has_loops and self._step.task.params.pipeline.slices):
            return ""
        return _SINGLE_NORM if has_loops else _NORM
