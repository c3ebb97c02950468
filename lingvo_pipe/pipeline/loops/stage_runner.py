r"""A stage at its place in the pipeline: receives, runs, keeps and sends.

    values in     ->  forward   ->  values out        what is kept goes through the
    gradients out <-  backward  <-  gradients in      stashes of `Kept`

Inputs of the mini-batch need no message: a stage that uses one finds it in the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.loops.clock import timestamp
from lingvo_pipe.pipeline.loops.packed_phases import PackedPhases
from lingvo_pipe.pipeline.loops.packing import Handles
from lingvo_pipe.pipeline.loops.stage import Stage
from lingvo_pipe.pipeline.loops.stage_call import StashSlot, Values
from lingvo_pipe.pipeline.loops.stash import Stash
from lingvo_pipe.pipeline.loops.traffic import Traffic
from lingvo_pipe.pipeline.schedules.schedule import Kind
from lingvo_pipe.pipeline.schedules.slots import Kept
from lingvo_pipe.pipeline.tracing.trace import Surroundings

Weights = Sequence[Sequence[tf.Tensor]]


class Row(NamedTuple):
    """An operation as data: `[]` int32 each."""

    micro_batch: tf.Tensor
    read_slot: tf.Tensor
    write_slot: tf.Tensor


class Outcome(NamedTuple):
    """What an operation leaves.

    Attributes:
        state: the new state.
        sent: operations that must have run.
        started: [] float64, the time at which its messages were there.
    """

    state: NestedMap
    sent: list[tf.Operation]
    started: tf.Tensor


class StageRunner:
    """The operations of one stage on loop state.

    State is what changes from one operation to the next (see `initial`); constants are
    what does not (see `constants`).
    """

    def __init__(
        self,
        stage: Stage,
        traffic: Traffic,
        specs: Mapping[int, tf.TensorSpec],
        device: str,
    ):
        """Initialises the runner.

        Args:
            stage: the stage.
            traffic: what goes in and out.
            specs: of all values, for one micro-batch.
            device: full name of where the operations run.
        """
        self._stage = stage
        self._device = device
        self._traffic = traffic
        self._specs = specs
        inputs = set(traffic.inputs)
        self._saved = [value for value in stage.saved if value not in inputs]
        self._inputs = Stash([specs[value] for value in self._saved])
        self._outputs = Stash([specs[value] for value in traffic.outputs])
        self._input_gradients = Stash([specs[v] for v in traffic.input_gradients])

    def constants(self, arguments: NestedMap, weights: Weights) -> NestedMap:
        """Of the pipeline's arguments those that this stage uses."""
        packed = [
            call.functions.pack_weights(*own)
            for call, own in zip(self._stage.calls, weights, strict=True)
        ]
        return NestedMap(
            weights=self._stage.weights.pack(packed),
            step=arguments.step,
            first_examples=arguments.first_examples,
            num_examples=arguments.num_examples,
            loss_scale=arguments.loss_scale,
            inputs=[arguments.batch[value] for value in self._traffic.inputs],
            output_gradients=arguments.output_gradients if self._traffic.seeded else [],
        )

    def initial(
        self, constants: NestedMap, num_slots: Mapping[Kept, tf.Tensor], trains: bool
    ) -> NestedMap:
        """The state before the first operation.

        Returns:
            NestedMap:
                sums: packed totals of all calls' sums.
                gradients: packed totals for the trained weights; empty without
                    backward.
                stashes: for each that is used NestedMap(stash: what calls keep,
                    inputs: contents of the stash of saved values).
                outputs: contents of the stash of outputs.
                input_gradients: likewise of the mini-batch's inputs' gradients.
        """
        stage = self._stage
        num_micro_batches = tf.shape(constants.first_examples)[0]
        state = NestedMap(
            sums=stage.sums.pack(self._of_calls(lambda f: f.zero_sums())),
            gradients=[],
            stashes=NestedMap(
                {k.name: self._empty(k, n) for k, n in num_slots.items()}
            ),
            outputs=self._outputs.empty(num_micro_batches),
            input_gradients=self._input_gradients.empty(num_micro_batches),
        )
        if trains:
            zeros = self._of_calls(lambda f: f.zero_gradients())
            state.gradients = stage.gradients.pack(zeros)
        return state

    def final_sums(self, state: NestedMap) -> list[list[tf.Tensor]]:
        """For each call the totals of its sums."""
        packs = self._stage.sums.unpack(state.sums)
        calls = zip(self._stage.calls, packs, strict=True)
        return [call.functions.unpack_sums(*pack) for call, pack in calls]

    def packed_gradients(self, state: NestedMap) -> list[list[tf.Tensor]]:
        """For each call the totals of its weights' gradients, packed."""
        return self._stage.gradients.unpack(state.gradients)

    def run(
        self,
        kind: Kind,
        kept: Kept | None,
        state: NestedMap,
        constants: NestedMap,
        row: Row,
    ) -> Outcome:
        """Runs an operation.

        Args:
            kind: of the operation.
            kept: the stash that it writes, if any.
            state: the state before it.
            constants: see `constants`.
            row: micro-batch and slots.
        """
        run = {
            Kind.FORWARD: self._forward,
            Kind.RECOMPUTE: self._recompute,
            Kind.BACKWARD: self._backward,
            Kind.WEIGHT_GRADIENT: self._weight_gradient,
        }[kind]
        return run(kept, NestedMap(state), constants, row)

    def stacked_outputs(self, state: NestedMap) -> list[tf.Tensor]:
        """The outputs kept in a final state, stacked by micro-batch."""
        return self._outputs.stacked(state.outputs)

    def stacked_input_gradients(self, state: NestedMap) -> Values:
        """The gradients of the mini-batch's inputs, stacked by micro-batch."""
        stacked = self._input_gradients.stacked(state.input_gradients)
        return dict(zip(self._traffic.input_gradients, stacked, strict=True))

    def _forward(
        self, kept: Kept | None, state: NestedMap, constants: NestedMap, row: Row
    ) -> Outcome:
        received = {
            value: channel.receive()
            for value, channel in self._traffic.receives.items()
        }
        started = self._time_after(received.values())
        with tf.control_dependencies([started]):
            values = {**self._from_batch(constants, row), **received}
            state.sums, stash = self._stage.forward(
                constants.weights,
                self._surroundings(constants, row),
                values,
                state.sums,
                all_kept=_slot(state, Kept.RESIDUALS, row.write_slot, kept),
                some_kept=_slot(state, Kept.FOR_RECOMPUTE, row.write_slot, kept),
            )
        if kept is Kept.FOR_RECOMPUTE:
            saved = [values[value] for value in self._saved]
            before = state.stashes.FOR_RECOMPUTE.inputs
            inputs = self._inputs.put(before, row.write_slot, saved)
            _set(state, kept, stash, inputs)
        elif kept is not None:
            _set(state, kept, stash)
        outputs = [values[value] for value in self._traffic.outputs]
        state.outputs = self._outputs.put(state.outputs, row.micro_batch, outputs)
        sent = [
            channel.send(values[value])
            for value, channel in self._traffic.sends.items()
        ]
        return Outcome(state, sent, started)

    def _recompute(
        self, kept: Kept | None, state: NestedMap, constants: NestedMap, row: Row
    ) -> Outcome:
        have = state.stashes.FOR_RECOMPUTE
        taken, inputs = self._inputs.take(have.inputs, row.read_slot)
        values = self._from_batch(constants, row)
        values.update(zip(self._saved, taken, strict=True))
        started = self._time_after(values.values())
        with tf.control_dependencies([started]):
            some, residuals = self._stage.recompute(
                constants.weights,
                self._surroundings(constants, row),
                values,
                StashSlot(have.stash, row.read_slot),
                StashSlot(state.stashes.RESIDUALS.stash, row.write_slot),
            )
        _set(state, Kept.FOR_RECOMPUTE, some, inputs)
        _set(state, Kept.RESIDUALS, residuals)
        return Outcome(state, [], started)

    def _backward(
        self, kept: Kept | None, state: NestedMap, constants: NestedMap, row: Row
    ) -> Outcome:
        received = {
            value: channel.receive()
            for value, channel in self._traffic.gradient_receives.items()
        }
        gradients = dict(received)
        for value, stacked in zip(
            self._traffic.seeded, constants.output_gradients, strict=True
        ):
            seed = stacked[row.micro_batch]
            before = gradients.get(value)
            gradients[value] = seed if before is None else before + seed
        started = self._time_after(received.values())
        residuals = StashSlot(state.stashes.RESIDUALS.stash, row.read_slot)
        told = self._surroundings(constants, row)
        given = constants.weights, told, residuals, gradients
        with tf.control_dependencies([started]):
            if kept is None:
                stash, state.gradients = self._stage.backward(*given, state.gradients)
            else:
                later = StashSlot(state.stashes[kept.name].stash, row.write_slot)
                stash, laters = self._stage.input_backward(*given, later)
                _set(state, kept, laters)
        _set(state, Kept.RESIDUALS, stash)
        state.input_gradients = self._input_gradients.put(
            state.input_gradients,
            row.micro_batch,
            [self._gradient(gradients, v) for v in self._traffic.input_gradients],
        )
        sent = [
            channel.send(gradients[value])
            for value, channel in self._traffic.gradient_sends.items()
        ]
        return Outcome(state, sent, started)

    def _weight_gradient(
        self, kept: Kept | None, state: NestedMap, constants: NestedMap, row: Row
    ) -> Outcome:
        later = StashSlot(state.stashes.WEIGHT_RESIDUALS.stash, row.read_slot)
        started = self._time_after(later.stash)
        with tf.control_dependencies([started]):
            stash, state.gradients = self._stage.weight_backward(
                constants.weights,
                self._surroundings(constants, row),
                later,
                state.gradients,
            )
        _set(state, Kept.WEIGHT_RESIDUALS, stash)
        return Outcome(state, [], started)

    def _from_batch(self, constants: NestedMap, row: Row) -> Values:
        stacked = zip(self._traffic.inputs, constants.inputs, strict=True)
        return {value: x[row.micro_batch] for value, x in stacked}

    def _surroundings(self, constants: NestedMap, row: Row) -> Surroundings:
        num = constants.num_examples
        return Surroundings(
            step=constants.step,
            first_example=constants.first_examples[row.micro_batch],
            num_examples=None if num is None else num[row.micro_batch],
            loss_scale=constants.loss_scale,
        )

    def _gradient(self, gradients: Values, value: int) -> tf.Tensor:
        spec = self._specs[value]
        found = gradients.get(value)
        return tf.zeros(spec.shape, spec.dtype) if found is None else found

    def _time_after(self, tensors: Iterable[tf.Tensor]) -> tf.Tensor:
        with tf.control_dependencies(list(tensors)):
            return timestamp(self._device)

    def _of_calls(self, make: Callable[[PackedPhases], Handles]) -> list[Handles]:
        """What all calls begin with; those that share functions share it too."""
        functions = [call.functions for call in self._stage.calls]
        made = {f: make(f) for f in dict.fromkeys(functions)}
        return [made[f] for f in functions]

    def _empty(self, kept: Kept, num_slots: tf.Tensor) -> NestedMap:
        """Contents of a stash with nothing in it."""
        stage = self._stage
        if kept is Kept.WEIGHT_RESIDUALS:
            laters = self._of_calls(lambda f: f.empty_weight_residuals(num_slots))
            return NestedMap(stash=stage.weight_residuals.pack(laters), inputs=[])
        stashes = self._of_calls(lambda f: f.empty_residuals(num_slots))
        if kept is Kept.RESIDUALS:
            return NestedMap(stash=stage.residuals.pack(stashes), inputs=[])
        some = [
            [] if again else stash
            for stash, again in zip(stashes, stage.recomputed, strict=True)
        ]
        inputs = self._inputs.empty(num_slots)
        return NestedMap(stash=stage.kept.pack(some), inputs=inputs)


def _slot(
    state: NestedMap, kept: Kept, slot: tf.Tensor, written: Kept | None
) -> StashSlot | None:
    """The slot of a stash if it is the one that is written."""
    if kept is not written:
        return None
    return StashSlot(state.stashes[kept.name].stash, slot)


def _set(
    state: NestedMap, kept: Kept, stash: Handles, inputs: Sequence[tf.Tensor] = ()
) -> None:
    """Gives a state new contents of a stash."""
    contents = NestedMap(stash=stash, inputs=list(inputs))
    state.stashes = NestedMap(state.stashes, **{kept.name: contents})
