r"""A stage at its place in the pipeline: receives, runs, keeps and sends.

    values in     ->  forward   ->  values out        what is kept goes through the
    gradients out <-  backward  <-  gradients in      stashes of `Kept`

Inputs of the mini-batch need no message: a stage that uses one finds it in the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import tensorflow as tf

from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.loops.clock import timestamp
from lingvo_pipe.pipeline.loops.operation import Outcome, Row
from lingvo_pipe.pipeline.loops.packing import Handles
from lingvo_pipe.pipeline.loops.stage import Stage
from lingvo_pipe.pipeline.loops.stage_call import StashSlot, Values
from lingvo_pipe.pipeline.loops.stage_update import StageUpdate
from lingvo_pipe.pipeline.loops.stash import Stash
from lingvo_pipe.pipeline.loops.traffic import Traffic
from lingvo_pipe.pipeline.schedules.schedule import Kind
from lingvo_pipe.pipeline.schedules.slots import Kept
from lingvo_pipe.pipeline.schedules.table import Branch
from lingvo_pipe.pipeline.tracing.trace import Surroundings

Weights = Sequence[Sequence[tf.Tensor]]


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
        update: StageUpdate | None = None,
    ):
        """Initialises the runner.

        Args:
            stage: the stage.
            traffic: what goes in and out.
            specs: of all values, for one micro-batch.
            device: full name of where the operations run.
            update: what changes the weights after a step; None: nothing does.
        """
        self._stage = stage
        self._update = update
        self._device = device
        self._traffic = traffic
        self._specs = specs
        inputs = set(traffic.inputs)
        self._saved = [value for value in stage.saved if value not in inputs]
        self._inputs = Stash([specs[value] for value in self._saved])
        self._outputs = Stash([specs[value] for value in traffic.outputs])
        self._input_gradients = Stash([specs[v] for v in traffic.input_gradients])

    def begin(
        self,
        arguments: NestedMap,
        weights: Weights,
        num_slots: Mapping[Kept, tf.Tensor],
        trains: bool,
    ) -> tuple[NestedMap, NestedMap]:
        """What the loop begins with.

        Args:
            arguments: the pipeline's.
            weights: the stage's.
            num_slots: of the stashes that are used.
            trains: whether there is a backward.

        Returns:
            The state before the first operation, and the constants: of the pipeline's
            arguments those that this stage uses. The state is a NestedMap:
                sums: packed totals of all calls' sums.
                gradients: packed totals for the trained weights; empty without
                    backward.
                stashes: for each that is used NestedMap(stash: what calls keep,
                    inputs: contents of the stash of saved values).
                outputs: contents of the stash of outputs.
                input_gradients: likewise of the mini-batch's inputs' gradients.
                updated: see `StageUpdate.begin`; empty without one.
        """
        stage, traffic = self._stage, self._traffic
        constants = NestedMap(
            weights=stage.pack_weights(weights),
            step=arguments.step,
            first_examples=arguments.first_examples,
            num_examples=arguments.num_examples,
            loss_scale=arguments.loss_scale,
            inputs=[arguments.batch[value] for value in traffic.inputs],
            output_gradients=arguments.output_gradients if traffic.seeded else [],
        )
        num_micro_batches = tf.shape(arguments.first_examples)[0]
        state = NestedMap(
            sums=stage.zero_sums(),
            gradients=stage.zero_gradients() if trains else [],
            stashes=NestedMap(
                {k.name: self._empty(k, n) for k, n in num_slots.items()}
            ),
            outputs=self._outputs.empty(num_micro_batches),
            input_gradients=self._input_gradients.empty(num_micro_batches),
            updated=[],
        )
        if self._update:
            # Not among the constants, which would keep the first weights for ever.
            state.updated = self._update.begin(constants.pop("weights"), arguments)
            constants.of_update = self._update.constants(arguments)
        return state, constants

    def final_sums(self, state: NestedMap) -> list[list[tf.Tensor]]:
        """For each call the totals of its sums."""
        return self._stage.unpack_sums(state.sums)

    def noted(self, state: NestedMap) -> NestedMap:
        """What the updates noted in a final state; see `StageUpdate.noted`."""
        assert self._update is not None
        return self._update.noted(state.updated)

    def packed_gradients(self, state: NestedMap) -> list[list[tf.Tensor]]:
        """For each call the totals of its weights' gradients, packed."""
        return self._stage.gradients.unpack(state.gradients)

    def run(
        self, branch: Branch, state: NestedMap, constants: NestedMap, row: Row
    ) -> Outcome:
        """Runs an operation.

        Args:
            branch: of the operation.
            state: the state before it.
            constants: see `constants`.
            row: micro-batch and slots.
        """
        if self._update:
            constants = NestedMap(constants, weights=state.updated.weights)
        run = {
            Kind.FORWARD: self._forward,
            Kind.RECOMPUTE: self._recompute,
            Kind.BACKWARD: self._backward,
            Kind.WEIGHT_GRADIENT: self._weight_gradient,
            Kind.UPDATE: self._change_weights,
        }[branch.kind]
        return run(branch, NestedMap(state), constants, row)

    def stacked_outputs(self, state: NestedMap) -> list[tf.Tensor]:
        """The outputs kept in a final state, stacked by micro-batch."""
        return self._outputs.stacked(state.outputs)

    def stacked_input_gradients(self, state: NestedMap) -> Values:
        """The gradients of the mini-batch's inputs, stacked by micro-batch."""
        stacked = self._input_gradients.stacked(state.input_gradients)
        return dict(zip(self._traffic.input_gradients, stacked, strict=True))

    def _change_weights(
        self, branch: Branch, state: NestedMap, constants: NestedMap, row: Row
    ) -> Outcome:
        assert self._update is not None
        started = self._time_after([row.micro_batch])
        with tf.control_dependencies([started]):
            state = self._update.run(state, constants, row.micro_batch)
        # Who is given leave must not seem to have begun before this was over.
        ended, sent = self._time_after([started, *state.updated.weights]), []
        if self._traffic.gives_leave:
            with tf.control_dependencies([ended]):
                sent = [self._traffic.gives_leave.send(tf.constant(True))]
        return Outcome(state, sent, started, ended)

    def _forward(
        self, branch: Branch, state: NestedMap, constants: NestedMap, row: Row
    ) -> Outcome:
        kept, leave = branch.kept, []
        if branch.waits_for_next and self._traffic.leave:
            leave.append(self._traffic.leave.receive())
        received = {
            value: channel.receive()
            for value, channel in self._traffic.receives.items()
        }
        started = self._time_after([*leave, *received.values()])
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
        self, branch: Branch, state: NestedMap, constants: NestedMap, row: Row
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
        self, branch: Branch, state: NestedMap, constants: NestedMap, row: Row
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
            if branch.kept is None:
                stash, state.gradients = self._stage.backward(*given, state.gradients)
            else:
                later = StashSlot(state.stashes[branch.kept.name].stash, row.write_slot)
                stash, laters = self._stage.input_backward(*given, later)
                _set(state, branch.kept, laters)
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
        self, branch: Branch, state: NestedMap, constants: NestedMap, row: Row
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
        return Surroundings(
            step=row.of_micro_batch(constants.step),
            first_example=constants.first_examples[row.micro_batch],
            num_examples=row.of_micro_batch(constants.num_examples),
            loss_scale=row.of_micro_batch(constants.loss_scale),
        )

    def _gradient(self, gradients: Values, value: int) -> tf.Tensor:
        spec = self._specs[value]
        found = gradients.get(value)
        return tf.zeros(spec.shape, spec.dtype) if found is None else found

    def _time_after(self, tensors: Iterable[tf.Tensor]) -> tf.Tensor:
        with tf.control_dependencies(list(tensors)):
            return timestamp(self._device)

    def _empty(self, kept: Kept, num_slots: tf.Tensor) -> NestedMap:
        """Contents of a stash with nothing in it."""
        stage = self._stage
        if kept is Kept.WEIGHT_RESIDUALS:
            laters = stage.of_calls(lambda f: f.empty_weight_residuals(num_slots))
            return NestedMap(stash=stage.weight_residuals.pack(laters), inputs=[])
        stashes = stage.of_calls(lambda f: f.empty_residuals(num_slots))
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
