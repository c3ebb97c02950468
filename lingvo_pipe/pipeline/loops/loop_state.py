"""The data of a stage's operations: ports, loop state, and the operation itself.

    StagePorts          structure: values and channels of the stage
    StageConstants      tensors that are the same for all operations of a run
    StageState          tensors that each operation replaces
    Operation           one iteration of the loop: StageState -> Outcome

A loop carries the fields of `StageState` from one operation to the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from lingvo_pipe.pipeline.loops.channel import Channel
from lingvo_pipe.pipeline.loops.host_copies import HostCopies
from lingvo_pipe.pipeline.loops.stage import StageInputs
from lingvo_pipe.pipeline.loops.stash import Pack, StashSlot
from lingvo_pipe.pipeline.loops.traced_layers import Values
from lingvo_pipe.pipeline.schedules.slots import StashKind
from lingvo_pipe.pipeline.schedules.table import Branch
from lingvo_pipe.pipeline.tracing.trace import CallContext


class StagePorts(NamedTuple):
    """The values that go in and out of a stage, by number, and their channels."""

    inputs: Sequence[int]  # Inputs of the mini-batch.
    receives: Mapping[int, Channel]  # Channels of other values that come in.
    sends: Mapping[int, Channel]  # Channels of values that go out.
    gradient_receives: Mapping[int, Channel]  # Channels of gradients that come in.
    gradient_sends: Mapping[int, Channel]  # Channels of gradients that go out.
    outputs: Sequence[int]  # Outputs of the pipeline.
    seeded: Sequence[int]  # Values whose gradients are arguments of the pipeline.
    input_gradients: Sequence[int]  # Values whose gradients the pipeline returns.
    # Carries one credit per step from the next stage, so that another step may begin.
    credit_in: Channel | None
    credit_out: Channel | None  # Carries one credit per step to the previous stage.
    copies: HostCopies | None  # None if the stage offloads nothing.


class UpdateConstants(NamedTuple):
    """The tensors that a stage's weight updates use and do not change."""

    divisors: tf.Tensor  # `[N]` float64, for N steps; see `LoopArguments`.
    micro_batches_per_step: tf.Tensor  # [] int32.
    captured: list[tf.Tensor]  # Tensors that the update's function captured.


class UpdatedState(NamedTuple):
    """The part of a stage's state that only weight updates change."""

    weights: Pack
    # sums, notes: contents of stashes, with a slot for each step.
    sums: list[tf.Tensor]
    notes: list[tf.Tensor]


class StageConstants(NamedTuple):
    """The tensors of a stage that no operation changes."""

    weights: Pack | None  # Packed weights; None with updates, where they are state.
    path_hashes: Pack  # Packed hashes of the layers' paths.
    step: Any  # This and the next three fields: see `RunArguments`, `LoopArguments`.
    first_examples: tf.Tensor
    num_examples: Any
    loss_scale: Any
    # The mini-batch's inputs that the stage uses, by micro-batch.
    inputs: list[tf.Tensor]
    # Gradients of the seeded values, by micro-batch.
    output_gradients: Sequence[tf.Tensor]
    of_update: UpdateConstants | None  # The constants of updates; None without updates.


class StageState(NamedTuple):
    """The tensors of a stage that its operations change."""

    gradients: Pack  # Packed gradient accumulators; empty without backward passes.
    # Contents of the stash of the mini-batch's inputs' gradients.
    input_gradients: list[tf.Tensor]
    outputs: list[tf.Tensor]  # Contents of the stash of outputs.
    # Contents of the stash of the values that a recomputation starts from.
    recompute_inputs: list[tf.Tensor]
    # Packed stashes that the schedule uses, by `StashKind.name`.
    stashes: dict[str, Pack]
    sums: Pack  # Packed sums of all layers.
    # The weights and results of updates; None without updates.
    updated: UpdatedState | None

    def slot(self, kind: StashKind, slot: tf.Tensor) -> StashSlot:
        return StashSlot(self.stashes[kind.name], slot)

    def with_stash(self, kind: StashKind, stash: Pack, **new: Any) -> StageState:
        """Returns the state with a new stash of this kind, and with fields `new`."""
        return self._replace(stashes={**self.stashes, kind.name: stash}, **new)


class Operation(NamedTuple):
    """One operation of a stage. `micro_batch` and the slots are `[]` int32 tensors."""

    branch: Branch
    constants: StageConstants
    micro_batch: tf.Tensor
    read_slot: tf.Tensor
    write_slot: tf.Tensor

    def batch_values(self, inputs: Sequence[int]) -> Values:
        """Returns the micro-batch's rows of each of `inputs`, by the input's number."""
        stacked = zip(inputs, self.constants.inputs, strict=True)
        return {value: x[self.micro_batch] for value, x in stacked}

    def stage_inputs(self, state: StageState) -> StageInputs:
        """Returns the stage's inputs. Weights that updates change come from `state`."""
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
        return x[self.micro_batch] if x is not None and x.shape.rank else x


class Outcome(NamedTuple):
    """The results of an operation: state, messages and times."""

    state: StageState
    sent: list[tf.Operation]  # Send operations that must run.
    started: tf.Tensor  # [] float64, the time when all messages had arrived.
    # [] float64, the time at which the operation finished. If None, that is when the
    # state exists and everything is sent.
    ended: tf.Tensor | None = None
