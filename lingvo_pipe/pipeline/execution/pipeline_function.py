"""PipelineFunction: the TensorFlow function of one kind of pipeline run.

Building the function takes long: it traces the stages and emits the loops. Weights,
step, inputs and targets are arguments, gradients and sums are results. Without updates,
the function is pure and captures nothing. Schedules share one function if they have the
same branches on the same devices. The order and number of operations do not matter.
"""

from collections.abc import Sequence

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.nests import map_present, pack_present, present, spec_of
from lingvo_pipe.pipeline.debug.diagnosis import diagnose
from lingvo_pipe.pipeline.debug.lost_checks import warn_of_lost_checks
from lingvo_pipe.pipeline.debug.unreached_weights import warn_of_unreached_weights
from lingvo_pipe.pipeline.devices.stage_devices import loop_device
from lingvo_pipe.pipeline.execution.auxiliary_losses import (
    has_auxiliary_losses,
    loss_divisor,
    loss_scale,
    loss_weights,
    weight_graph,
)
from lingvo_pipe.pipeline.execution.gradients_and_metrics import results_of
from lingvo_pipe.pipeline.execution.packed_weights import PackedWeights
from lingvo_pipe.pipeline.execution.pipeline_spec import PipelineSpec, by_stage
from lingvo_pipe.pipeline.execution.replicas import Bytes, emit_batch_shards, step_bytes
from lingvo_pipe.pipeline.loops.loop_graph import LoopGraph
from lingvo_pipe.pipeline.loops.mutex import lock_run, unlock_run
from lingvo_pipe.pipeline.loops.run_data import (
    LoopArguments,
    RunArguments,
    RunResults,
    table_spec,
)
from lingvo_pipe.pipeline.loops.stage import Stage
from lingvo_pipe.pipeline.loops.stage_update import StageUpdate, Update
from lingvo_pipe.pipeline.loops.traced_layers import TracedLayers
from lingvo_pipe.pipeline.memory.peak_memory import (
    bytes_of_calls,
    peak_bytes,
    shared_weights,
)
from lingvo_pipe.pipeline.schedules.offload import roles_in_stage
from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.schedules.table import FedTable
from lingvo_pipe.pipeline.tracing.phases import compilation
from lingvo_pipe.pipeline.tracing.trace import CallContext, is_differentiable


class PipelineFunction:
    """A function from weights, step, inputs and targets to the results of a run."""

    def __init__(self, spec: PipelineSpec, arguments: RunArguments):
        """Builds the function, for the shapes and dtypes that `arguments` have."""
        self._spec = spec
        self._devices = [loop_device(device) for device in spec.layout.devices]
        specs = map_present(spec_of, arguments)
        self._traced = _trace_layers(spec, specs)
        if spec.trains and spec.loss_fn:
            warn_of_unreached_weights(self._traced)
        elif spec.trains and has_auxiliary_losses(self._traced.traces):
            raise UserValueError(
                f"{spec.name}: the gradient of FProp lacks the losses that layers add.",
                path=spec.name,
                hint="Use ComputeGradients.",
            )
        self._stages = _stages(spec, self._traced)
        self._thetas = specs.thetas
        self._weights = PackedWeights(spec, self._stages)
        outputs = present(self._traced.outputs)
        seeded = [v for v in outputs if is_differentiable(self._traced.specs[v])]
        num_inputs = len(present(specs.inputs))
        self._loop_graphs = [
            LoopGraph(
                spec.tables,
                self._stages,
                list(map(loop_device, devices)),
                self._traced.specs,
                outputs=[] if spec.loss_fn or spec.trains else outputs,
                seeded=seeded if spec.trains and not spec.loss_fn else [],
                input_gradients=range(num_inputs) if spec.input_gradients else [],
                channel_prefix=f"{spec.name}/{replica}",
                updates=self._updates(spec.update) if spec.update else [],
            )
            for replica, devices in enumerate(spec.layout.replicas)
        ]
        self._arguments = (
            specs_for_any_number(arguments._replace(thetas=[])),
            self._weights.spec,
            [table_spec(table.fed) for table in spec.tables],
        )
        self._fed_eagerly = tf.function(self._fed, autograph=False)
        self._function = tf.compat.v1.wrap_function(
            self._emit, present(self._arguments)
        )

    def __call__(
        self, arguments: RunArguments, tables: Sequence[FedTable]
    ) -> RunResults:
        """Runs the pipeline. `tables` have the operations of each device's loop."""
        weights = self._weights.pack(arguments.thetas)
        fed = arguments._replace(thetas=[]), weights, list(tables)
        results = self._function(*present(fed))
        return pack_present(self._results, results)

    def diagnose(self, arguments: RunArguments) -> None:
        """Runs the layers one by one. Raises the error of the operation that fails."""
        spec = self._spec
        thetas = [*arguments.thetas, *([[]] if spec.loss_fn else [])]
        weights = [
            list(map(tf.convert_to_tensor, tf.nest.flatten(theta))) for theta in thetas
        ]
        of_loops = self._fed_eagerly(arguments._replace(thetas=[]))
        devices = spec.layout.devices
        diagnose(self._stages, devices, self._traced, of_loops, weights, spec.trains)

    def peak_bytes(self, schedule: Schedule, on_host: bool = False) -> list[int]:
        """Returns the peak bytes of each device of a replica. See `peak_memory`."""
        return peak_bytes(
            schedule,
            self._stages,
            self._traced.specs,
            self._traced.inputs,
            num_accumulators=self._spec.layout.shards_per_replica,
            shared_weights=shared_weights(
                self._spec.layers, len(self._spec.layout.replicas)
            ),
            devices=self._spec.layout.devices,
            on_host=on_host,
        )

    def boundary_bytes(self, num_micro_batches: int) -> Bytes:
        """Returns the bytes that a step sends between devices. See `step_bytes`."""
        layers = [layer for stage in self._stages for layer in stage.layers]
        calls = bytes_of_calls(layers, [False] * len(layers), num_accumulators=1)
        between = [loop_graph.bytes_between() for loop_graph in self._loop_graphs]
        return step_bytes(self._spec, between, calls, num_micro_batches)

    @property
    def draws(self) -> bool:
        """True if a layer draws random numbers."""
        return self._traced.draws

    @property
    def graph(self) -> tf.Graph:
        return self._function.graph

    def _emit(self, *flat: tf.Tensor) -> list[tf.Tensor]:
        spec = self._spec
        arguments, packs, tables = pack_present(self._arguments, flat)
        lock = lock_run(spec.name, flat)
        with tf.control_dependencies([lock]):
            of_loops = self._fed(arguments, tables)
            by_replica = self._weights.by_replica(packs)
            shards = emit_batch_shards(self._loop_graphs, spec, of_loops, by_replica)
            results = results_of(
                spec, self._traced, self._stages, shards, arguments, self._thetas
            )
        self._results = map_present(spec_of, results)
        return unlock_run(lock, present(results))

    def _fed(
        self, arguments: RunArguments, tables: Sequence[FedTable] = ()
    ) -> LoopArguments:
        fed = LoopArguments(tables, weights=[], run=arguments)
        if self._spec.trains and self._spec.loss_fn:
            return self._with_loss_scale(fed)
        return fed

    def _with_loss_scale(self, fed: LoopArguments) -> LoopArguments:
        """Adds the factor of auxiliary losses and, for updates, each step's divisor."""
        traces, arguments = self._traced.traces, fed.run
        num_targets = len(present(arguments.targets))
        if any(trace.result.local_goals for trace in traces):
            weight_graph(traces[-1], num_targets)  # Raises unless targets define it.
        fed = fed._replace(loss_scale=tf.constant(1.0, tf.float64))
        if not (has_auxiliary_losses(traces) or self._spec.update):
            return fed
        batch_size = arguments.batch_size
        with tf.device(self._devices[-1]):
            weights = loss_weights(traces[-1], num_targets, arguments)
            if not self._spec.update:
                return fed._replace(loss_scale=loss_scale(weights, batch_size))
            per_step = arguments.micro_batches_per_step
            by_step = tf.reshape(weights, [-1, per_step])
            # In the same order of additions as in a single step.
            zeros = tf.zeros_like(by_step[:, 0])
            total = tf.foldl(tf.add, tf.transpose(by_step), zeros)
            fed = fed._replace(divisors=loss_divisor(traces, total, batch_size))
            if not has_auxiliary_losses(traces):
                return fed
            scales = tf.map_fn(
                lambda of_step: loss_scale(of_step, batch_size),
                by_step,
                fn_output_signature=tf.float64,
            )
            return fed._replace(loss_scale=tf.repeat(scales, per_step))

    def _updates(self, update: Update) -> list[StageUpdate]:
        boundaries = self._spec.layout.boundaries
        layers = by_stage(self._spec.layers, boundaries)
        traces = by_stage(self._traced.traces, boundaries)
        stages = zip(layers, traces, self._stages, self._devices, strict=True)
        return [StageUpdate(update, *stage) for stage in stages]


def specs_for_any_number(arguments: RunArguments) -> RunArguments:
    """Returns specs of a run's arguments for any number of micro-batches."""
    return map_present(spec_of, arguments).map_stacked(
        lambda x: tf.TensorSpec([None, *x.shape[1:]], x.dtype)
    )


def _trace_layers(spec: PipelineSpec, specs: RunArguments) -> TracedLayers:
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
    return spec.trace_layers(
        specs.thetas,
        call_context,
        inputs,
        targets,
        num_micro_batches=(
            spec.layout.schedule.num_micro_batches * spec.layout.num_batch_shards
        ),
        stages={
            layer.path: stage
            for stage, layers in enumerate(
                by_stage(spec.layers, spec.layout.boundaries)
            )
            for layer in layers
        },
    )


def _stages(spec: PipelineSpec, traced: TracedLayers) -> list[Stage]:
    layers = by_stage(spec.layers, spec.layout.boundaries)
    compiled = [
        compilation(yes, device)
        for yes, device, stage_layers in zip(
            spec.jit_compile, spec.layout.devices, layers, strict=True
        )
        for _ in stage_layers
    ]
    recomputed, offloaded = list(spec.layout.recomputed), list(spec.layout.offloaded)
    if spec.loss_fn:
        compiled.append(compiled[-1])
        recomputed.append(recomputed[-1])
        offloaded.append(offloaded[-1])
    placed = traced.placed_layers(compiled)
    warn_of_lost_checks(traced, [x.by_xla for x in compiled])
    boundaries = [*spec.layout.boundaries[:-1], len(placed)]
    branches = [branch for table in spec.tables for branch in table.branches]
    identical: dict[object, Stage] = {}
    stages = []
    for stage, (layers_here, *allowed) in enumerate(
        zip(
            *(by_stage(x, boundaries) for x in (placed, recomputed, offloaded)),
            strict=True,
        )
    ):
        kinds = {branch.kind for branch in branches if branch.stage == stage}
        again, away = roles_in_stage(kinds, *allowed)
        stages.append(Stage(layers_here, again, identical, away))
    return stages
