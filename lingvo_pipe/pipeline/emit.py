r"""From a schedule to one TensorFlow graph.

    device 0:  While over column 0 ---Send/Recv---  device 1:  While over column 1  ...

Each device runs one functional While loop over its own column of the schedule, an
int table fed as data: an iteration picks the operation's branch and runs it on the
micro-batch the table names. Neighbours exchange activations and gradients over
channels, so a device waits for the messages it needs and for nothing else; the size of
the graph depends neither on the number of micro-batches nor on the schedule.

The loops stand side by side in one graph without automatic control dependencies, which
would run them one after another: for ever, as each waits for its neighbour. So whatever
must run within an iteration is tied to its results by hand.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.channel import Channel
from lingvo_pipe.pipeline.schedule import Kind, Schedule
from lingvo_pipe.pipeline.stage import Stage
from lingvo_pipe.pipeline.stash import Stash


class Emitter:
    """Emits the loops of one schedule over given stages and devices."""

    def __init__(
        self,
        schedule: Schedule,
        stages: Sequence[Stage],
        devices: Sequence[str],
        micro_batch_size: int,
        channel_prefix: str,
    ):
        """Initialises the emitter.

        Args:
            schedule: checked.
            stages: one for each of the schedule's.
            devices: full names, one for each of the schedule's.
            micro_batch_size: number of examples in a micro-batch.
            channel_prefix: unlike that of any other pipeline in the same step.
        """
        self._schedule = schedule
        self._stages = stages
        self._devices = devices
        self._micro_batch_size = micro_batch_size
        self._num_slots = schedule.num_micro_batches
        self._homes = schedule.device_of_stage()
        self._activations = [
            self._channel(f"{channel_prefix}/activation", k, k + 1, stage.outputs.specs)
            for k, stage in enumerate(stages[:-1])
        ]
        self._gradients = [
            self._channel(
                f"{channel_prefix}/gradient", k + 1, k, stage.outputs.gradient_specs
            )
            for k, stage in enumerate(stages[:-1])
        ]
        self._stashes = [Stash(self._num_slots, stage.inputs.specs) for stage in stages]
        self._outputs = Stash(self._num_slots, stages[-1].outputs.specs)

    def emit(self, arguments: NestedMap) -> NestedMap:
        """Emits the loops into the current graph, one without automatic dependencies.

        Args:
            arguments: NestedMap of tensors or None:
                columns: what `tables` returns.
                thetas: for each stage its layers' weights.
                step: [] int64 or None.
                inputs: positional inputs of the first stage, stacked by micro-batch.
                targets: of the loss, stacked by micro-batch.

        Returns:
            NestedMap:
                gradients: for each stage a list, of the trained weights, of the summed
                    loss; empty lists if the schedule has no backward.
                sums: for each stage the total of its sums.
                outputs: the last stage's outputs, stacked by micro-batch, if it has no
                    loss; else empty.
        """
        finals = [self._loop(device, arguments) for device in range(len(self._devices))]
        by_stage = {
            stage: (finals[device], local)
            for device, stages in self._local_stages().items()
            for local, stage in enumerate(stages)
        }
        order = range(len(self._stages))
        last, _ = by_stage[len(self._stages) - 1]
        with tf.device(self._devices[self._homes[len(self._stages) - 1]]):
            outputs = self._outputs.stacked(last.outputs) if last.outputs else []
        return NestedMap(
            gradients=[by_stage[s][0].gradients[by_stage[s][1]] for s in order],
            sums=[by_stage[s][0].sums[by_stage[s][1]] for s in order],
            outputs=outputs,
        )

    def tables(self) -> list[list[tuple[int, int]]]:
        """The schedule as data: for each device rows (branch, micro-batch)."""
        return [
            [(self._branches(device).index(op[::2]), op.micro_batch) for op in column]
            for device, column in enumerate(self._schedule.columns)
        ]

    def _channel(
        self, name: str, source: int, target: int, specs: list[tf.TensorSpec]
    ) -> Channel:
        return Channel(
            f"{name}/{source}",
            self._devices[self._homes[source]],
            self._devices[self._homes[target]],
            specs,
        )

    def _local_stages(self) -> dict[int, list[int]]:
        """The stages of each device."""
        local: dict[int, list[int]] = {d: [] for d in range(len(self._devices))}
        for stage, device in sorted(self._homes.items()):
            local[device].append(stage)
        return local

    def _branches(self, device: int) -> list[tuple[Kind, int]]:
        """The distinct (kind, stage) of a device: the branches of its loop's body."""
        kinds = list(Kind) if self._schedule.has_backward else [Kind.FORWARD]
        return [(k, stage) for stage in self._local_stages()[device] for k in kinds]

    # One device's loop.

    def _loop(self, device: int, arguments: NestedMap) -> NestedMap:
        stages = self._local_stages()[device]
        with tf.device(self._devices[device]):
            constant = NestedMap(
                column=arguments.columns[device],
                thetas=[arguments.thetas[stage] for stage in stages],
                step=arguments.step,
                inputs=arguments.inputs if 0 in stages else None,
                targets=arguments.targets
                if self._stages[stages[-1]].has_loss
                else None,
            )
            start = NestedMap(
                varying=self._initial(stages, constant),
                constant=tf.nest.map_structure(_identity, constant),
            )
            return self._while(functools.partial(self._body, device), start).varying

    def _initial(self, stages: list[int], constant: NestedMap) -> NestedMap:
        trains = self._schedule.has_backward
        is_last = stages[-1] == len(self._stages) - 1
        keeps_outputs = is_last and not self._stages[-1].has_loss
        return NestedMap(
            index=tf.constant(0),
            sums=[
                tf.nest.map_structure(_zeros, self._stages[stage].sums)
                for stage in stages
            ],
            gradients=[
                [_zeros(w) for w in self._stages[stage].trained(thetas) if trains]
                for stage, thetas in zip(stages, constant.thetas, strict=True)
            ],
            # The first stage finds its inputs where they are.
            stashes=[
                self._stashes[stage].empty() if trains and stage else []
                for stage in stages
            ],
            outputs=self._outputs.empty() if keeps_outputs else [],
        )

    def _while(self, body: Any, start: NestedMap) -> NestedMap:
        """A While loop over a column that stays one node a device."""
        tensors = [x for x in tf.nest.flatten(start) if x is not None]

        def unflatten(flat: Sequence[tf.Tensor]) -> NestedMap:
            remaining = iter(flat)
            return tf.nest.map_structure(
                lambda x: None if x is None else next(remaining), start
            )

        def flat_body(*flat: tf.Tensor) -> list[tf.Tensor]:
            state = unflatten(flat)
            state.varying = body(state)
            return [x for x in tf.nest.flatten(state) if x is not None]

        def flat_condition(*flat: tf.Tensor) -> tf.Tensor:
            state = unflatten(flat)
            return state.varying.index < tf.shape(state.constant.column)[0]

        specs = [tf.TensorSpec(x.shape, x.dtype) for x in tensors]
        results = tf.raw_ops.While(
            input=tensors,
            cond=tf.compat.v1.wrap_function(flat_condition, specs),
            body=tf.compat.v1.wrap_function(flat_body, specs),
            output_shapes=[x.shape for x in tensors],
            parallel_iterations=1,
        )
        return unflatten(
            [tf.ensure_shape(r, x.shape) for r, x in zip(results, tensors, strict=True)]
        )

    def _body(self, device: int, state: NestedMap) -> NestedMap:
        branch, micro_batch = tf.unstack(state.constant.column[state.varying.index])
        stages = self._local_stages()[device]
        run = {Kind.FORWARD: self._forward, Kind.BACKWARD: self._backward}
        return tf.switch_case(
            branch,
            [
                functools.partial(
                    run[kind], stage, stages.index(stage), state, micro_batch
                )
                for kind, stage in self._branches(device)
            ],
        )

    # The operations.

    def _forward(
        self, k: int, local: int, state: NestedMap, micro_batch: tf.Tensor
    ) -> NestedMap:
        stage, varying = self._stages[k], _copy(state.varying)
        inputs = (
            self._activations[k - 1].receive()
            if k
            else self._slice(state.constant.inputs, micro_batch)
        )
        outputs, sums = stage.forward(
            *self._arguments(stage, state, local, micro_batch, inputs)
        )
        tensors = stage.outputs.tensors(outputs)
        varying.sums[local] = tf.nest.map_structure(tf.add, varying.sums[local], sums)
        if varying.stashes[local]:
            varying.stashes[local] = self._stashes[k].put(
                varying.stashes[local], micro_batch, inputs
            )
        if varying.outputs and k == len(self._stages) - 1:
            varying.outputs = self._outputs.put(varying.outputs, micro_batch, tensors)
        sent = self._activations[k].send(tensors) if k + 1 < len(self._stages) else []
        return _advance(varying, sent)

    def _backward(
        self, k: int, local: int, state: NestedMap, micro_batch: tf.Tensor
    ) -> NestedMap:
        stage, varying = self._stages[k], _copy(state.varying)
        inputs = (
            self._stashes[k].get(varying.stashes[local], micro_batch)
            if k
            else self._slice(state.constant.inputs, micro_batch)
        )
        received = self._gradients[k].receive() if k + 1 < len(self._stages) else []
        gradients, varying.gradients[local] = stage.backward(
            *self._arguments(stage, state, local, micro_batch, inputs),
            received,
            varying.gradients[local],
        )
        sent = self._gradients[k - 1].send(gradients) if k else []
        return _advance(varying, sent)

    def _arguments(
        self,
        stage: Stage,
        state: NestedMap,
        local: int,
        micro_batch: tf.Tensor,
        inputs: list[tf.Tensor],
    ) -> tuple:
        constant = state.constant
        targets = constant.targets if stage.has_loss else None
        first_example = tf.cast(micro_batch, tf.int64) * self._micro_batch_size
        return (
            constant.thetas[local],
            constant.step,
            first_example,
            stage.inputs.pack(inputs),
            tf.nest.map_structure(lambda x: _slot(x, micro_batch), targets),
        )

    def _slice(self, stacked: Any, micro_batch: tf.Tensor) -> list[tf.Tensor]:
        return [
            _slot(x, micro_batch) for x in tf.nest.flatten(stacked) if x is not None
        ]


def _slot(stacked: tf.Tensor | None, index: tf.Tensor) -> tf.Tensor | None:
    return None if stacked is None else stacked[index]


def _zeros(like: Any) -> tf.Tensor:
    return tf.zeros(like.shape, like.dtype)


def _identity(x: tf.Tensor | None) -> tf.Tensor | None:
    return None if x is None else tf.identity(x)


def _copy(varying: NestedMap) -> NestedMap:
    """A structure of its own, to be changed, with the same tensors."""
    return tf.nest.map_structure(lambda x: x, varying)


def _advance(varying: NestedMap, after: list[tf.Operation]) -> NestedMap:
    """The state for the next iteration, which comes after the given operations."""
    with tf.control_dependencies(after):
        varying.index = tf.identity(varying.index + 1)
    return varying
