r"""A stage at its place in the pipeline: receives, runs, keeps and sends.

    activations in  ->  forward   ->  activations out       inputs kept in the stash
    gradients out   <-  backward  <-  gradients in          until the backward

The first stage finds its inputs where they are, in the mini-batch; the last one starts
its backward from the loss.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.channel import Channel
from lingvo_pipe.pipeline.optional_nest import map_present, present
from lingvo_pipe.pipeline.stage import Stage
from lingvo_pipe.pipeline.stash import Stash


class StageRunner:
    """The operations of one stage on loop state.

    State is what changes from one operation to the next (see `initial`); constants are
    what does not: a NestedMap of `thetas`, `step`, `first_example`, and, stacked by
    micro-batch, of `inputs` for the first stage and `targets` for one with a loss.
    """

    def __init__(
        self,
        stage: Stage,
        trains: bool,
        num_micro_batches: int,
        micro_batch_size: int,
        before: tuple[Channel, Channel] | None,
        after: tuple[Channel, Channel] | None,
    ):
        """Initialises the runner.

        Args:
            stage: the stage.
            trains: whether there will be backward operations.
            num_micro_batches: M.
            micro_batch_size: number of examples in each.
            before: channels of activations and gradients shared with the stage before;
                None for the first.
            after: those shared with the stage after; None for the last.
        """
        self._stage = stage
        self._trains = trains
        self._micro_batch_size = micro_batch_size
        self._before = before
        self._after = after
        self._inputs = Stash(num_micro_batches, stage.inputs.specs)
        self._outputs = Stash(num_micro_batches, stage.outputs.specs)

    def constants(self, arguments: NestedMap, thetas: Any) -> NestedMap:
        """Of the pipeline's arguments those that this stage uses."""
        return NestedMap(
            thetas=thetas,
            step=arguments.step,
            first_example=arguments.first_example,
            inputs=arguments.inputs if self._before is None else None,
            targets=arguments.targets if self._stage.has_loss else None,
        )

    def initial(self, constants: NestedMap) -> NestedMap:
        """The state before the first operation.

        Returns:
            NestedMap:
                sums: totals of the stage's sums.
                gradients: totals for the trained weights; empty without backward.
                inputs: contents of the stash; empty where nothing need be kept.
                outputs: likewise, of the last stage's outputs if it has no loss.
        """
        keeps_inputs = self._trains and self._before is not None
        keeps_outputs = self._after is None and not self._stage.has_loss
        zeros = self._stage.zero_gradients(constants.thetas) if self._trains else []
        return NestedMap(
            sums=tf.nest.map_structure(_zeros, self._stage.sums),
            gradients=zeros,
            inputs=self._inputs.empty() if keeps_inputs else [],
            outputs=self._outputs.empty() if keeps_outputs else [],
        )

    def forward(
        self, state: NestedMap, constants: NestedMap, micro_batch: tf.Tensor
    ) -> tuple[NestedMap, list[tf.Operation]]:
        """Runs the stage forward.

        Returns:
            The new state, and the operations that must have run.
        """
        if self._before is None:
            inputs = present(_slot(constants.inputs, micro_batch))
        else:
            inputs = self._before[0].receive()
        outputs, sums = self._stage.forward(
            *self._arguments(constants, micro_batch, inputs)
        )
        tensors = self._stage.outputs.tensors(outputs)
        new = NestedMap(state, sums=tf.nest.map_structure(tf.add, state.sums, sums))
        if state.inputs:
            new.inputs = self._inputs.put(state.inputs, micro_batch, inputs)
        if state.outputs:
            new.outputs = self._outputs.put(state.outputs, micro_batch, tensors)
        return new, self._after[0].send(tensors) if self._after else []

    def backward(
        self, state: NestedMap, constants: NestedMap, micro_batch: tf.Tensor
    ) -> tuple[NestedMap, list[tf.Operation]]:
        """Runs the stage backward; returns as `forward` does."""
        if self._before is None:
            inputs = present(_slot(constants.inputs, micro_batch))
        else:
            inputs = self._inputs.get(state.inputs, micro_batch)
        input_gradients, gradients = self._stage.backward(
            *self._arguments(constants, micro_batch, inputs),
            self._after[1].receive() if self._after else [],
            state.gradients,
        )
        sent = self._before[1].send(input_gradients) if self._before else []
        return NestedMap(state, gradients=gradients), sent

    def stacked_outputs(self, state: NestedMap) -> list[tf.Tensor]:
        """The outputs kept in a final state, stacked by micro-batch."""
        return self._outputs.stacked(state.outputs) if state.outputs else []

    def _arguments(
        self, constants: NestedMap, micro_batch: tf.Tensor, inputs: list[tf.Tensor]
    ) -> tuple:
        """The arguments that the stage's forward and backward begin with."""
        offset = tf.cast(micro_batch, tf.int64) * self._micro_batch_size
        return (
            constants.thetas,
            constants.step,
            constants.first_example + offset,
            self._stage.inputs.pack(inputs),
            _slot(constants.targets, micro_batch),
        )


def _slot(stacked: Any, micro_batch: tf.Tensor) -> Any:
    """One micro-batch of a structure of stacked tensors and None."""
    return map_present(lambda x: x[micro_batch], stacked)


def _zeros(like: Any) -> tf.Tensor:
    return tf.zeros(like.shape, like.dtype)
