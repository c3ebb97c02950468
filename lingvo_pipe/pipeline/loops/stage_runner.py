r"""Runs a stage's operations in the loop of the stage's device.

    operation        receives    reads stash       writes stash        sends

    forward          values                        RESIDUALS, or       values
                     (a credit)                    FOR_RECOMPUTE       (copies)
    recompute                    FOR_RECOMPUTE     RESIDUALS
    backward         gradients   RESIDUALS         (WEIGHT_RESIDUALS)  gradients
                     (copies)
    weight gradient              WEIGHT_RESIDUALS
    update                                                             (a credit)
    offload          a signal
    load                                                               a request

What is in parentheses occurs only in some schedules. Every operation receives its
messages, records the time, runs the stage's layers, and sends. Inputs of the mini-batch
need no message: a stage that uses one finds it in the batch.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import tensorflow as tf

from lingvo_pipe.pipeline.loops.channel import Channel
from lingvo_pipe.pipeline.loops.loop_state import (
    Operation,
    Outcome,
    StageConstants,
    StagePorts,
    StageState,
)
from lingvo_pipe.pipeline.loops.offloaded_part import put_loaded, take_offloaded
from lingvo_pipe.pipeline.loops.run_data import LoopArguments, StageResults
from lingvo_pipe.pipeline.loops.stage import Stage
from lingvo_pipe.pipeline.loops.stage_update import StageUpdate
from lingvo_pipe.pipeline.loops.stash import Pack, Stash, StashSlot
from lingvo_pipe.pipeline.loops.traced_layers import Values, gradient_or_zeros
from lingvo_pipe.pipeline.loops.while_loop import timestamp
from lingvo_pipe.pipeline.schedules.schedule import Kind
from lingvo_pipe.pipeline.schedules.slots import StashKind


class StageRunner:
    """The operations of one stage, as functions of the loop's state, by kind."""

    def __init__(
        self,
        stage: Stage,
        ports: StagePorts,
        specs: Mapping[int, tf.TensorSpec],
        device: str,
        update: StageUpdate | None,
    ):
        """Initializes the runner. `specs` has the values' specs for a micro-batch."""
        self._stage = stage
        self._ports = ports
        self._device = device
        self._update = update
        inputs = set(ports.inputs)
        self._recompute_inputs = [
            value for value in stage.recompute_inputs if value not in inputs
        ]
        self._recompute_stash = Stash([specs[v] for v in self._recompute_inputs])
        self._outputs = Stash([specs[value] for value in ports.outputs])
        self._input_gradients = Stash([specs[v] for v in ports.input_gradients])
        self.operations: dict[Kind, Callable[[Operation, StageState], Outcome]] = {
            Kind.FORWARD: self._forward,
            Kind.RECOMPUTE: self._recompute,
            Kind.BACKWARD: self._backward,
            Kind.WEIGHT_GRADIENT: self._weight_gradient,
            Kind.UPDATE: self._change_weights,
            Kind.OFFLOAD: self._offload,
            Kind.LOAD: self._load,
        }

    def begin(
        self,
        arguments: LoopArguments,
        weights: Sequence[Pack],
        num_slots: Mapping[StashKind, tf.Tensor],
        trains: bool,
    ) -> tuple[StageState, StageConstants]:
        """Returns the stage's initial state and its constants.

        `weights` are packs, one for each layer. `num_slots` are the sizes of the
        stashes that the schedule uses. `trains` is false without backward passes.
        """
        stage, ports, update = self._stage, self._ports, self._update
        packed_weights = stage.weights.pack(weights)
        run = arguments.run
        num_micro_batches = tf.shape(run.first_examples)[0]
        num_recomputed = num_slots.get(StashKind.FOR_RECOMPUTE)
        state = StageState(
            sums=stage.zero_sums(),
            gradients=stage.zero_gradients() if trains else [],
            stashes={
                kind.name: stage.empty_stash(kind, n) for kind, n in num_slots.items()
            },
            recompute_inputs=(
                []
                if num_recomputed is None
                else self._recompute_stash.empty(num_recomputed)
            ),
            outputs=self._outputs.empty(num_micro_batches),
            input_gradients=self._input_gradients.empty(num_micro_batches),
            updated=update.begin(packed_weights, arguments) if update else None,
        )
        constants = StageConstants(
            # With updates, weights are state. Constants would keep the initial ones.
            weights=None if update else packed_weights,
            path_hashes=stage.pack_path_hashes(),
            step=run.step,
            first_examples=run.first_examples,
            num_examples=run.num_examples,
            loss_scale=arguments.loss_scale,
            inputs=[run.batch[value] for value in ports.inputs],
            output_gradients=run.output_gradients if ports.seeded else [],
            of_update=update.constants(arguments) if update else None,
        )
        return state, constants

    def results(self, state: StageState) -> StageResults:
        """Returns the stage's results, from the final state."""
        gradients: list[Pack] = []
        notes: list[tf.Tensor] = []
        if self._update and state.updated:
            sums, notes = self._update.results(state.updated)
        else:
            gradients = self._stage.gradients.unpack(state.gradients)
            sums = self._stage.unpack_sums(state.sums)
        stacked = self._input_gradients.stacked(state.input_gradients)
        return StageResults(
            gradients=gradients,
            sums=sums,
            notes=notes,
            outputs=self._outputs.stacked(state.outputs),
            input_gradients=dict(
                zip(self._ports.input_gradients, stacked, strict=True)
            ),
        )

    def _forward(self, op: Operation, state: StageState) -> Outcome:
        ports, kind = self._ports, op.branch.stash
        credits = []
        if op.branch.waits_for_next and ports.credit_in:
            credits.append(ports.credit_in.receive())
        received = _receive(ports.receives)
        started = self._time_after([*credits, *received.values()])
        with tf.control_dependencies([started]):
            values = {**op.batch_values(ports.inputs), **received}
            will_recompute = kind is StashKind.FOR_RECOMPUTE
            new_values, sums, stash = self._stage.forward(
                op.stage_inputs(state),
                values,
                state.sums,
                state.slot(kind, op.write_slot) if kind else None,
                will_recompute=will_recompute,
                wanted=[
                    *ports.sends,
                    *ports.outputs,
                    *(self._recompute_inputs if will_recompute else []),
                ],
            )
        values.update(new_values)
        sent = _send(ports.sends, values)
        if op.branch.offloads:
            copied, stash = take_offloaded(
                self._stage,
                StashSlot(stash, op.write_slot),
                op.batch_values(ports.inputs),
                will_recompute=will_recompute,
            )
            if ports.copies:
                sent.append(ports.copies.begin_offload(copied))
        if will_recompute:
            recompute_inputs = [values[value] for value in self._recompute_inputs]
            contents = self._recompute_stash.put(
                state.recompute_inputs, op.write_slot, recompute_inputs
            )
            state = state._replace(recompute_inputs=contents)
        if kind is not None:
            state = state.with_stash(kind, stash)
        results = [values[value] for value in ports.outputs]
        outputs = self._outputs.put(state.outputs, op.micro_batch, results)
        state = state._replace(sums=sums, outputs=outputs)
        return Outcome(state, sent, started)

    def _recompute(self, op: Operation, state: StageState) -> Outcome:
        stashed = state.slot(StashKind.FOR_RECOMPUTE, op.read_slot)
        recompute_inputs, contents = self._recompute_stash.take(
            state.recompute_inputs, op.read_slot
        )
        values = op.batch_values(self._ports.inputs)
        values.update(zip(self._recompute_inputs, recompute_inputs, strict=True))
        started = self._time_after(values.values())
        with tf.control_dependencies([started]):
            into = state.slot(StashKind.RESIDUALS, op.write_slot)
            stash, residuals = self._stage.recompute(
                op.stage_inputs(state),
                values,
                stashed,
                into,
                offloads=op.branch.offloads,
            )
        state = state.with_stash(
            StashKind.FOR_RECOMPUTE, stash, recompute_inputs=contents
        )
        state = state.with_stash(StashKind.RESIDUALS, residuals)
        return Outcome(state, [], started)

    def _backward(self, op: Operation, state: StageState) -> Outcome:
        ports, late_kind = self._ports, op.branch.stash
        received = _receive(ports.gradient_receives)
        gradients = dict(received)
        seeds = zip(ports.seeded, op.constants.output_gradients, strict=True)
        for value, stacked in seeds:
            seed, before = stacked[op.micro_batch], gradients.get(value)
            gradients[value] = seed if before is None else before + seed
        residuals = state.slot(StashKind.RESIDUALS, op.read_slot)
        loaded = ports.copies.end_load() if op.branch.offloads and ports.copies else []
        started = self._time_after([*received.values(), *loaded])
        late = state.slot(late_kind, op.write_slot) if late_kind else None
        with tf.control_dependencies([started]):
            if op.branch.offloads:
                inputs = op.batch_values(ports.inputs)
                (stash,) = put_loaded(self._stage, loaded, inputs, residuals)
                residuals = StashSlot(stash, op.read_slot)
            totals, stash, new = self._stage.backward(
                op.stage_inputs(state),
                residuals,
                gradients,
                late or state.gradients,
                wanted=[*ports.gradient_sends, *ports.input_gradients],
            )
        gradients.update(totals)
        if late_kind:
            state = state.with_stash(late_kind, new)
        else:
            state = state._replace(gradients=new)
        state = state.with_stash(StashKind.RESIDUALS, stash)
        specs = zip(ports.input_gradients, self._input_gradients.specs, strict=True)
        completed_gradients = [gradient_or_zeros(gradients, *pair) for pair in specs]
        input_gradients = self._input_gradients.put(
            state.input_gradients, op.micro_batch, completed_gradients
        )
        state = state._replace(input_gradients=input_gradients)
        return Outcome(state, _send(ports.gradient_sends, gradients), started)

    def _weight_gradient(self, op: Operation, state: StageState) -> Outcome:
        late = state.slot(StashKind.WEIGHT_RESIDUALS, op.read_slot)
        started = self._time_after(late.stash)
        with tf.control_dependencies([started]):
            stash, accumulators = self._stage.weight_backward(
                op.stage_inputs(state), late, state.gradients
            )
        state = state.with_stash(
            StashKind.WEIGHT_RESIDUALS, stash, gradients=accumulators
        )
        return Outcome(state, [], started)

    def _change_weights(self, op: Operation, state: StageState) -> Outcome:
        assert self._update is not None
        started = self._time_after([op.micro_batch])
        with tf.control_dependencies([started]):
            state = self._update.run(state, op.constants, op.micro_batch)
        # The stage that gets the credit must not appear to begin before this has ended.
        assert state.updated is not None
        ended, sent = self._time_after([started, *state.updated.weights]), []
        if self._ports.credit_out:
            with tf.control_dependencies([ended]):
                sent = [self._ports.credit_out.send(tf.constant(True))]
        return Outcome(state, sent, started, ended)

    def _offload(self, op: Operation, state: StageState) -> Outcome:
        copies = self._ports.copies
        signals = [copies.end_offload()] if copies else []
        return Outcome(state, [], self._time_after([op.micro_batch, *signals]))

    def _load(self, op: Operation, state: StageState) -> Outcome:
        copies = self._ports.copies
        requests = [copies.begin_load()] if copies else []
        return Outcome(state, requests, self._time_after([op.micro_batch]))

    def _time_after(self, tensors: Iterable[tf.Tensor]) -> tf.Tensor:
        with tf.control_dependencies(list(tensors)):
            return timestamp(self._device)


def _receive(channels: Mapping[int, Channel]) -> Values:
    return {value: channel.receive() for value, channel in channels.items()}


def _send(channels: Mapping[int, Channel], values: Values) -> list[tf.Operation]:
    return [channel.send(values[value]) for value, channel in channels.items()]
