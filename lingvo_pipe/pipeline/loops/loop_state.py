"""The data of a stage's operations: ports, loop state, and the operation itself.

    StagePorts          structure: values and channels of the stage
    StageConstants      tensors that are the same for all operations of a run
    StageState          tensors that each operation replaces
    Operation           one iteration of the loop: StageState -> Outcome

The fields of `StageState` are in alphabetical order, in which the loop carries them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from lingvo_pipe.pipeline.loops.channel import Channel
from lingvo_pipe.pipeline.loops.placed_layer import Values
from lingvo_pipe.pipeline.loops.stage import StageInputs
from lingvo_pipe.pipeline.loops.stash import Pack, StashSlot
from lingvo_pipe.pipeline.schedules.slots import StashKind
from lingvo_pipe.pipeline.schedules.table import Branch
from lingvo_pipe.pipeline.tracing.trace import CallContext


class StagePorts(NamedTuple):
    """The values that go in and out of a stage, by number, and their channels.

    Attributes:
        inputs, outputs: values that are inputs of the mini-batch, or outputs of the
            pipeline.
        receives, sends: channels of other values that come in and go out.
        gradient_receives, gradient_sends: the same for gradients, backward.
        seeded, input_gradients: values whose gradients are arguments, or results, of
            the pipeline.
        credit_in: channel that carries one credit per step from the next stage, needed
            to begin another step; None if the stage needs none.
        credit_out: the same to the previous stage.
    """

    inputs: Sequence[int]
    receives: Mapping[int, Channel]
    sends: Mapping[int, Channel]
    gradient_receives: Mapping[int, Channel]
    gradient_sends: Mapping[int, Channel]
    outputs: Sequence[int]
    seeded: Sequence[int]
    input_gradients: Sequence[int]
    credit_in: Channel | None
    credit_out: Channel | None


class UpdateConstants(NamedTuple):
    """The constants of a stage's updates.

    Attributes:
        divisors: `[N]` float64, for N steps; see `LoopArguments`.
        micro_batches_per_step: [] int32.
        captured: tensors that the update's function captured.
    """

    divisors: tf.Tensor
    micro_batches_per_step: tf.Tensor
    captured: list[tf.Tensor]


class UpdatedState(NamedTuple):
    """The state of a stage that updates its weights.

    Attributes:
        weights: packed weights.
        sums, notes: contents of stashes, with a slot for each step.
    """

    weights: Pack
    sums: list[tf.Tensor]
    notes: list[tf.Tensor]


class StageConstants(NamedTuple):
    """The constants of a stage.

    Attributes:
        weights: packed weights; None with updates, which make them state.
        path_hashes: see `Stage.pack_path_hashes`.
        step, first_examples, num_examples, loss_scale: see `LoopArguments`.
        inputs: the mini-batch's inputs that the stage uses, by micro-batch.
        output_gradients: gradients of the seeded values, by micro-batch.
        of_update: the constants of updates; None without updates.
    """

    weights: Pack | None
    path_hashes: Pack
    step: Any
    first_examples: tf.Tensor
    num_examples: Any
    loss_scale: Any
    inputs: list[tf.Tensor]
    output_gradients: Sequence[tf.Tensor]
    of_update: UpdateConstants | None


class StageState(NamedTuple):
    """The loop state of a stage.

    Attributes:
        gradients: packed gradient accumulators; empty without backward passes.
        input_gradients: contents of the stash of the mini-batch's inputs' gradients.
        outputs: contents of the stash of outputs.
        recompute_inputs: contents of the stash of recompute inputs, the values that a
            recomputation starts from.
        stashes: packed stashes that the schedule uses, by `StashKind.name`.
        sums: packed sums of all layers.
        updated: the weights and results of updates; None without updates.
    """

    gradients: Pack
    input_gradients: list[tf.Tensor]
    outputs: list[tf.Tensor]
    recompute_inputs: list[tf.Tensor]
    stashes: dict[str, Pack]
    sums: Pack
    updated: UpdatedState | None

    def slot(self, kind: StashKind, slot: tf.Tensor) -> StashSlot:
        return StashSlot(self.stashes[kind.name], slot)

    def with_stash(self, kind: StashKind, stash: Pack, **new: Any) -> StageState:
        """Returns the state with a new stash, and other new fields."""
        return self._replace(stashes={**self.stashes, kind.name: stash}, **new)


class Operation(NamedTuple):
    """An operation of a stage, as its loop runs it. Numbers are `[]` int32."""

    branch: Branch
    constants: StageConstants
    micro_batch: tf.Tensor
    read_slot: tf.Tensor
    write_slot: tf.Tensor

    def batch_values(self, inputs: Sequence[int]) -> Values:
        """Returns the micro-batch of the mini-batch's inputs."""
        stacked = zip(inputs, self.constants.inputs, strict=True)
        return {value: x[self.micro_batch] for value, x in stacked}

    def stage_inputs(self, state: StageState) -> StageInputs:
        """Returns the weights, which may be state, and the micro-batch's context."""
        constants = self.constants
        context = CallContext(
            step=self._of_micro_batch(constants.step),
            first_example=constants.first_examples[self.micro_batch],
            num_examples=self._of_micro_batch(constants.num_examples),
            loss_scale=self._of_micro_batch(constants.loss_scale),
        )
        weights = state.updated.weights if state.updated else constants.weights
        return StageInputs(weights or [], constants.path_hashes, context)

    def _of_micro_batch(self, x: tf.Tensor | None) -> tf.Tensor | None:
        """Returns the micro-batch's element of `[M]`, and `[]` or None unchanged."""
        return x[self.micro_batch] if x is not None and x.shape.rank else x


class Outcome(NamedTuple):
    """The results of an operation.

    Attributes:
        state: the new state.
        sent: operations that must have run.
        started: [] float64, the time at which its messages had arrived.
        ended: [] float64, the time at which it finished; if None, the time at which the
            state exists and everything is sent.
    """

    state: StageState
    sent: list[tf.Operation]
    started: tf.Tensor
    ended: tf.Tensor | None = None
