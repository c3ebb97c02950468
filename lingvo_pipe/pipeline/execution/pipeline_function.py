"""PipelineFunction: the TensorFlow function of one kind of pipeline run.

Building it traces the stages and emits the loops, which takes long. It is pure:
weights, step, inputs and targets are arguments, gradients and sums are results, and it
captures nothing. Schedules with the same branches on the same devices, in any
order and number, share one function.
"""

from collections.abc import Sequence

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.nests import map_present, pack_present, present, spec_of
from lingvo_pipe.layers.core.forward_context import row_dim
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.debug.diagnosis import diagnose
from lingvo_pipe.pipeline.debug.unreached_weights import warn_of_unreached_weights
from lingvo_pipe.pipeline.devices.stage_devices import loop_device
from lingvo_pipe.pipeline.execution.auxiliary_losses import (
    has_auxiliary_losses,
    loss_divisor,
    loss_scale,
    loss_weights,
    weight_graph,
)
from lingvo_pipe.pipeline.execution.gradients_and_metrics import (
    results_of,
    results_of_steps,
)
from lingvo_pipe.pipeline.execution.packed_weights import PackedWeights
from lingvo_pipe.pipeline.execution.pipeline_spec import PipelineSpec, by_stage
from lingvo_pipe.pipeline.execution.replicas import (
    Bytes,
    emit_batch_shards,
    step_bytes,
)
from lingvo_pipe.pipeline.execution.update_function import Update, update_function
from lingvo_pipe.pipeline.loops.assembly import Assembly
from lingvo_pipe.pipeline.loops.mutex import lock_run, unlock_run
from lingvo_pipe.pipeline.loops.schedule_graph import Emitter
from lingvo_pipe.pipeline.loops.stage import Stage
from lingvo_pipe.pipeline.loops.stage_update import StageUpdate
from lingvo_pipe.pipeline.memory.peak_memory import (
    bytes_of_calls,
    peak_bytes,
    shared_weights,
)
from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.tracing.phases import compilation
from lingvo_pipe.pipeline.tracing.trace import CallContext, is_differentiable

# Arguments of a run that are stacked by micro-batch.
_STACKED = ("inputs", "targets", "output_gradients", "first_examples", "num_examples")


class PipelineFunction:
    """Weights, step, inputs, targets -> gradients, metrics, sums, outputs."""

    def __init__(self, spec: PipelineSpec, arguments: NestedMap):
        """Builds the function for arguments of these shapes and dtypes."""
        self._spec = spec
        self._devices = [loop_device(device) for device in spec.devices]
        specs = map_present(spec_of, arguments)
        self._assembly = _assemble(spec, specs)
        if spec.trains and spec.loss_fn:
            warn_of_unreached_weights(self._assembly)
        elif spec.trains and has_auxiliary_losses(self._assembly.traces):
            raise UserValueError(
                f"{spec.name}: the gradient of FProp lacks the losses that some layers "
                "add. Use ComputeGradients."
            )
        self._stages = _stages(spec, self._assembly)
        self._thetas = specs.thetas
        self._weights = PackedWeights(spec, self._stages)
        outputs = present(self._assembly.outputs)
        seeded = [v for v in outputs if is_differentiable(self._assembly.specs[v])]
        num_inputs = len(present(specs.inputs))
        self._emitters = [
            Emitter(
                spec.tables,
                self._stages,
                list(map(loop_device, devices)),
                self._assembly.specs,
                outputs=[] if spec.loss_fn or spec.trains else outputs,
                seeded=seeded if spec.trains and not spec.loss_fn else [],
                input_gradients=range(num_inputs) if spec.input_gradients else [],
                channel_prefix=f"{spec.name}/{replica}",
                updates=self._updates(spec.update) if spec.update else [],
            )
            for replica, devices in enumerate(spec.replicas)
        ]
        tables = [
            NestedMap(
                rows=tf.TensorSpec([None, 4], tf.int32),
                num_slots=tf.TensorSpec([len(table.num_slots)], tf.int32),
            )
            for table in spec.tables
        ]
        self._arguments = NestedMap(
            specs_for_any_number(NestedMap(arguments, thetas=[])),
            weights=self._weights.handles,
            tables=tables,
        )
        self._fed_eagerly = tf.function(self._fed, autograph=False)
        self._function = tf.compat.v1.wrap_function(
            self._emit, present(self._arguments)
        )

    def __call__(self, arguments: NestedMap, tables: Sequence[NestedMap]) -> NestedMap:
        """Runs the pipeline.

        Args:
            arguments: NestedMap of tensors or None:
                thetas: weights of each layer, tensors or variables.
                step: [] integer or None; with updates `[M]`.
                batch_size: [] int32, number of examples of a step.
                micro_batches_per_step: [] int32, with updates.
                first_examples, num_examples: see `Emitter.emit`.
                inputs: positional inputs of the first layer, stacked by micro-batch.
                targets: targets of the loss, stacked by micro-batch.
                output_gradients: list of gradients of the differentiable outputs,
                    stacked.
            tables: `fed` of the schedule's tables, with the structure of the tables in
                the specification.

        Returns:
            NestedMap:
                gradients: gradients of the mean loss, for each layer in theta's
                    structure; None for untrained weights, and everywhere without a
                    backward pass.
                metrics: NestedMap(name=(mean, weight)) over the mini-batch.
                accumulated: dict of sums by the accumulators' paths.
                outputs: outputs of the last layer, stacked by micro-batch; None with a
                    loss.
                input_gradients: gradients in the structure of `inputs`, stacked; None
                    unless the specification asks for them.
                times: see `Emitter.emit`.

            With updates: see `results_of_steps`.
        """
        weights = self._weights.pack(arguments.thetas)
        fed = NestedMap(arguments, thetas=[], weights=weights, tables=list(tables))
        results = self._function(*present(fed))
        return pack_present(self._results, results)

    def diagnose(self, arguments: NestedMap) -> None:
        """Raises the error of the operation that fails; see `diagnosis`."""
        spec = self._spec
        weights = by_stage(
            [
                list(map(tf.convert_to_tensor, tf.nest.flatten(theta)))
                for theta in arguments.thetas
            ],
            spec.boundaries,
        )
        if spec.loss_fn:
            weights[-1].append([])
        fed = self._fed_eagerly(NestedMap(arguments, thetas=[], weights=weights))
        diagnose(self._stages, spec.devices, self._assembly, fed, spec.trains)

    def peak_bytes(self, schedule: Schedule) -> list[int]:
        """Returns the peak bytes of each device of a replica; see `peak_memory`."""
        values = self._assembly.specs, self._assembly.inputs
        num_accumulators = self._spec.shards_per_replica
        shared = shared_weights(self._spec.layers, len(self._spec.replicas))
        return peak_bytes(schedule, self._stages, *values, num_accumulators, shared)

    def boundary_bytes(self, num_micro_batches: int) -> Bytes:
        """Returns the bytes that a step sends; see `step_bytes`."""
        layers = [layer for stage in self._stages for layer in stage.layers]
        calls = bytes_of_calls(layers, [False] * len(layers), num_accumulators=1)
        between = [emitter.bytes_between() for emitter in self._emitters]
        return step_bytes(self._spec, between, calls, num_micro_batches)

    @property
    def graph(self) -> tf.Graph:
        return self._function.graph

    def _emit(self, *flat: tf.Tensor) -> list[tf.Tensor]:
        spec, arguments = self._spec, pack_present(self._arguments, flat)
        lock = lock_run(spec.name, flat)
        with tf.control_dependencies([lock]):
            fed = self._fed(arguments)
            fed.weights = self._weights.by_replica(arguments.weights)
            shards = emit_batch_shards(self._emitters, spec, fed)
            if spec.update:
                results = results_of_steps(spec, self._assembly, shards[0], arguments)
            else:
                results = results_of(
                    spec, self._assembly, self._stages, shards, arguments, self._thetas
                )
        results.accumulated = dict(sorted(results.accumulated.items()))
        self._results = map_present(spec_of, results)
        return unlock_run(lock, present(results))

    def _fed(self, arguments: NestedMap) -> NestedMap:
        """Returns the arguments of the emitter."""
        fed = NestedMap(
            arguments,
            loss_scale=None,
            batch=present((arguments.inputs, arguments.targets)),
        )
        if self._spec.trains and self._spec.loss_fn:
            self._set_loss_scale(fed)
        return fed

    def _set_loss_scale(self, fed: NestedMap) -> None:
        """Adds the scale of auxiliary losses, and with updates each step's divisor."""
        traces = self._assembly.traces
        num_targets = len(present(fed.targets))
        if any(trace.result.local_goals for trace in traces):
            weight_graph(traces[-1], num_targets)  # It must follow from the targets.
        fed.loss_scale = tf.constant(1.0, tf.float64)
        if not (has_auxiliary_losses(traces) or self._spec.update):
            return
        with tf.device(self._devices[-1]):
            weights = loss_weights(traces[-1], num_targets, fed)
            if not self._spec.update:
                fed.loss_scale = loss_scale(weights, fed.batch_size)
                return
            per_step = fed.micro_batches_per_step
            by_step = tf.reshape(weights, [-1, per_step])
            # In the same order of additions as in a single step.
            zeros = tf.zeros_like(by_step[:, 0])
            total = tf.foldl(tf.add, tf.transpose(by_step), zeros)
            fed.divisors = loss_divisor(traces, total, fed.batch_size)
            if has_auxiliary_losses(traces):
                scales = tf.map_fn(
                    lambda own: loss_scale(own, fed.batch_size),
                    by_step,
                    fn_output_signature=tf.float64,
                )
                fed.loss_scale = tf.repeat(scales, per_step)

    def _updates(self, update: Update) -> list[StageUpdate]:
        layers = by_stage(self._spec.layers, self._spec.boundaries)
        traces = by_stage(self._assembly.traces, self._spec.boundaries)
        updates = []
        for own_layers, own_traces, stage, device in zip(
            layers, traces, self._stages, self._devices, strict=True
        ):
            function = update_function(update, own_layers, own_traces, stage, device)
            updates.append(StageUpdate(stage, function))
        return updates


def specs_for_any_number(arguments: NestedMap) -> NestedMap:
    """Returns specs of a run's arguments for any number of micro-batches."""
    specs = map_present(spec_of, arguments)
    has_steps = specs.step is not None and specs.step.shape.rank
    for name in [*_STACKED, "step"] if has_steps else _STACKED:
        specs[name] = map_present(
            lambda x: tf.TensorSpec([None, *x.shape[1:]], x.dtype), specs[name]
        )
    return specs


def _assemble(spec: PipelineSpec, specs: NestedMap) -> Assembly:
    has_goal = spec.trains and spec.loss_fn is not None
    call_context = CallContext(
        path_hash=tf.TensorSpec([], tf.uint64),
        step=specs.step and tf.TensorSpec([], specs.step.dtype),
        first_example=tf.TensorSpec([], tf.int64),
        num_examples=specs.num_examples and tf.TensorSpec([], tf.int32),
        loss_scale=tf.TensorSpec([], tf.float64) if has_goal else None,
    )
    inputs, targets = map_present(
        lambda x: tf.TensorSpec(x.shape[1:], x.dtype), (specs.inputs, specs.targets)
    )
    first = present((inputs, targets))[0]
    return spec.assemble(
        specs.thetas,
        call_context,
        inputs,
        targets,
        num_rows=first.shape[row_dim(first.shape.rank, spec.batch_dim)],
        stages={
            layer.path: stage
            for stage, layers in enumerate(by_stage(spec.layers, spec.boundaries))
            for layer in layers
        },
    )


def _stages(spec: PipelineSpec, assembly: Assembly) -> list[Stage]:
    """Groups the layers, and the loss, into stages."""
    layers = by_stage(spec.layers, spec.boundaries)
    compiled = [
        compilation(yes, device)
        for yes, device, own in zip(spec.jit_compile, spec.devices, layers, strict=True)
        for _ in own
    ]
    recomputed = list(spec.recomputed)
    if spec.loss_fn:
        compiled.append(compiled[-1])
        recomputed.append(recomputed[-1])
    placed = assembly.placed_layers(compiled)
    boundaries = [*spec.boundaries[:-1], len(placed)]
    grouped = by_stage(placed, boundaries), by_stage(recomputed, boundaries)
    kinds: dict[object, Stage] = {}
    return [Stage(*stage, kinds) for stage in zip(*grouped, strict=True)]
