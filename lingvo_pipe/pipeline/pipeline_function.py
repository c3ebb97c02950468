"""The function that one run of a pipeline calls: stages traced, loops emitted.

It is pure: weights, step, inputs and targets come in as arguments, gradients and totals
come out; nothing is captured. Building it takes the time. Schedules that have the same
branches on the same devices, in whatever order and number, share one.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from lingvo_pipe.layers.forward_context import row_dim
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.optional_nest import (
    map_present,
    pack_present,
    present,
    spec_of,
)
from lingvo_pipe.pipeline.assembly import Assembly
from lingvo_pipe.pipeline.boundary_bytes import Bytes, step_bytes
from lingvo_pipe.pipeline.cut_gradients import warn_of_cut_gradients
from lingvo_pipe.pipeline.devices.stage_devices import loop_device
from lingvo_pipe.pipeline.diagnosis import diagnose
from lingvo_pipe.pipeline.loops.emit import Emitter
from lingvo_pipe.pipeline.loops.stage import Stage
from lingvo_pipe.pipeline.loops.stage_update import StageUpdate
from lingvo_pipe.pipeline.loops.turns import take_turns
from lingvo_pipe.pipeline.peak_memory import call_bytes, peak_bytes
from lingvo_pipe.pipeline.plan import Plan, by_stage
from lingvo_pipe.pipeline.replicas import emit_parts
from lingvo_pipe.pipeline.results import results_of, results_of_steps
from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.side_losses import (
    check_weight,
    has_local_losses,
    has_side_losses,
    loss_divisor,
    loss_scale,
    loss_weights,
)
from lingvo_pipe.pipeline.tracing.layer_function import LayerFunctions
from lingvo_pipe.pipeline.tracing.phases import compilation
from lingvo_pipe.pipeline.tracing.trace import Surroundings, is_differentiable
from lingvo_pipe.pipeline.update_function import Update, update_function

# Arguments of a run that are stacked by micro-batch.
_BY_MICRO_BATCH = (
    "inputs",
    "targets",
    "output_gradients",
    "first_examples",
    "num_examples",
)


class PipelineFunction:
    """Weights, step, inputs, targets -> gradients, metrics, totals, outputs."""

    def __init__(self, plan: Plan, arguments: NestedMap):
        """Builds the function.

        Args:
            plan: what it is built from.
            arguments: as for a call.
        """
        self._plan = plan
        self._devices = [loop_device(device) for device in plan.devices]
        specs = map_present(spec_of, arguments)
        self._assembly = _assemble(plan, specs)
        if plan.trains and not plan.loss_fn and has_side_losses(self._assembly.traces):
            raise ValueError(
                "The gradient of a forward pass does not hold the losses that layers "
                f"add, and some in {plan.name} do. Use ComputeGradients."
            )
        if plan.trains and plan.loss_fn:
            warn_of_cut_gradients(self._assembly)
        self._stages = _stages(plan, self._assembly)
        outputs = present(self._assembly.outputs)
        seeded = [v for v in outputs if is_differentiable(self._assembly.specs[v])]
        self._num_inputs = len(present(specs.inputs))
        self._emitters = [
            Emitter(
                plan.tables,
                self._stages,
                list(map(loop_device, devices)),
                self._assembly.specs,
                outputs=[] if plan.loss_fn or plan.trains else outputs,
                seeded=seeded if plan.trains and not plan.loss_fn else [],
                input_gradients=range(self._num_inputs) if plan.input_gradients else [],
                channel_prefix=f"{plan.name}/{replica}",
                updates=self._updates(plan.update) if plan.update else [],
            )
            for replica, devices in enumerate(plan.replicas)
        ]
        tables = [
            NestedMap(
                rows=tf.TensorSpec([None, 4], tf.int32),
                num_slots=tf.TensorSpec([len(table.num_slots)], tf.int32),
            )
            for table in plan.tables
        ]
        self._arguments = NestedMap(specs_for_any_number(arguments), tables=tables)
        self._fed_eagerly = tf.function(self._fed, autograph=False)
        self._function = tf.compat.v1.wrap_function(
            self._emit, present(self._arguments)
        )

    def __call__(self, arguments: NestedMap, tables: Sequence[NestedMap]) -> NestedMap:
        """Runs the pipeline.

        Args:
            arguments: NestedMap of tensors or None:
                thetas: for each layer its weights.
                step: [] integer or None; with updates `[M]`.
                batch_size: [] int32, number of examples, of a step.
                micro_batches_per_step: [] int32, with updates.
                first_examples, num_examples: see `Emitter.emit`.
                inputs: positional inputs of the first layer, stacked by micro-batch.
                targets: of the loss, stacked by micro-batch.
                output_gradients: of the outputs that have any, stacked; a list.
            tables: those of the schedule to run, as they are `fed`; of the structure
                of the plan's.

        Returns:
            NestedMap:
                gradients: for each layer, in theta's structure; of the mean loss; None
                    for what is not trained, and everywhere without a backward.
                metrics: NestedMap(name=(mean, weight)) over the mini-batch.
                accumulated: dict of totals by the accumulators' paths.
                outputs: the last layer's, stacked by micro-batch; None with a loss.
                input_gradients: in the structure of `inputs`, stacked; None if not
                    wanted.
                times: see `Emitter.emit`.

            With updates: see `results_of_steps`.
        """
        fed = NestedMap(arguments, tables=list(tables))
        results = self._function(*present(fed))
        packed = pack_present(self._results, results)
        packed.accumulated = dict(
            zip(self._accumulator_paths, packed.accumulated, strict=True)
        )
        return packed

    def diagnose(self, arguments: NestedMap) -> None:
        """Raises the error of what goes wrong with these; see `diagnosis`."""
        diagnose(
            self._stages,
            self._plan.devices,
            self._assembly,
            self._fed_eagerly(arguments),
            self._plan.trains,
        )

    def peak_bytes(self, schedule: Schedule) -> list[int]:
        """For each device of a replica; see `peak_memory`."""
        of_values = self._assembly.specs, self._assembly.inputs
        return peak_bytes(
            schedule, self._stages, *of_values, self._plan.parts_per_replica
        )

    def boundary_bytes(self, num_micro_batches: int) -> Bytes:
        """See `boundary_bytes`."""
        calls = [
            call_bytes(call, recomputed=False, num_totals=1)
            for stage in self._stages
            for call in stage.calls
        ]
        between = [emitter.bytes_between() for emitter in self._emitters]
        return step_bytes(self._plan, between, calls, num_micro_batches)

    @property
    def graph(self) -> tf.Graph:
        """The emitted graph."""
        return self._function.graph

    def _emit(self, *flat: tf.Tensor) -> list[tf.Tensor]:
        arguments = pack_present(self._arguments, flat)

        def run() -> list[tf.Tensor]:
            results = self._results_of(arguments)
            self._accumulator_paths = sorted(results.accumulated)
            results.accumulated = [
                results.accumulated[path] for path in self._accumulator_paths
            ]
            self._results = map_present(spec_of, results)
            return present(results)

        return take_turns(self._plan.name, flat, run)

    def _results_of(self, arguments: NestedMap) -> NestedMap:
        plan, fed = self._plan, self._fed(arguments)
        if plan.update:
            (emitter,) = self._emitters
            raw = emitter.emit(fed)
            return results_of_steps(plan, self._assembly, raw, arguments)
        parts = emit_parts(self._emitters, plan, fed)
        return results_of(plan, self._assembly, self._stages, parts, arguments)

    def _fed(self, arguments: NestedMap) -> NestedMap:
        """The arguments as the emitter takes them."""
        weights = [
            [tf.nest.flatten(theta) for theta in thetas]
            for thetas in by_stage(arguments.thetas, self._plan.ends)
        ]
        if self._plan.loss_fn:
            weights[-1].append([])
        fed = NestedMap(
            arguments,
            weights=weights,
            loss_scale=None,
            batch=present((arguments.inputs, arguments.targets)),
        )
        if self._plan.trains and self._plan.loss_fn:
            self._set_weights_of_losses(fed)
        return fed

    def _set_weights_of_losses(self, fed: NestedMap) -> None:
        """Adds what the losses' weights settle, as far as it is needed beforehand."""
        traces = self._assembly.traces
        num_targets = len(present(fed.targets))
        if has_local_losses(traces):
            check_weight(traces[-1], num_targets)
        fed.loss_scale = tf.constant(1.0, tf.float64)
        if not (has_side_losses(traces) or self._plan.update):
            return
        with tf.device(self._devices[-1]):
            weights = loss_weights(traces[-1], num_targets, fed)
            if self._plan.update:
                self._set_weights_of_steps(fed, weights)
            else:
                fed.loss_scale = loss_scale(weights, fed.batch_size)

    def _set_weights_of_steps(self, fed: NestedMap, weights: tf.Tensor) -> None:
        traces, per_step = self._assembly.traces, fed.micro_batches_per_step
        by_step = tf.reshape(weights, [-1, per_step])
        # One after another, as they are added up where there is a single step.
        total = tf.foldl(tf.add, tf.transpose(by_step), tf.zeros_like(by_step[:, 0]))
        fed.divisors = loss_divisor(traces, total, fed.batch_size)
        if has_side_losses(traces):
            scales = tf.map_fn(
                lambda own: loss_scale(own, fed.batch_size),
                by_step,
                fn_output_signature=tf.float64,
            )
            fed.loss_scale = tf.repeat(scales, per_step)

    def _updates(self, update: Update) -> list[StageUpdate]:
        plan = self._plan
        traces = iter(self._assembly.traces)
        return [
            StageUpdate(
                stage,
                update_function(
                    update,
                    layers,
                    stage,
                    [next(traces) for _ in stage.calls],
                    device,
                ),
            )
            for layers, stage, device in zip(
                by_stage(plan.layers, plan.ends),
                self._stages,
                self._devices,
                strict=True,
            )
        ]


def _assemble(plan: Plan, specs: NestedMap) -> Assembly:
    has_goal = plan.trains and plan.loss_fn is not None
    surroundings = Surroundings(
        path_hash=tf.TensorSpec([], tf.uint64),
        step=specs.step and tf.TensorSpec([], specs.step.dtype),
        first_example=tf.TensorSpec([], tf.int64),
        num_examples=specs.num_examples and tf.TensorSpec([], tf.int32),
        loss_scale=tf.TensorSpec([], tf.float64) if has_goal else None,
    )
    inputs = map_present(_micro_batch_spec, specs.inputs)
    targets = map_present(_micro_batch_spec, specs.targets)
    first = present((inputs, targets))[0]
    functions = LayerFunctions(
        plan.do_eval,
        plan.trains,
        plan.batch_dim,
        plan.state_dtype,
        num_rows=first.shape[row_dim(first.shape.rank, plan.batch_dim)],
        loss_fn=plan.loss_fn,
        stages={
            layer.path: stage
            for stage, layers in enumerate(by_stage(plan.layers, plan.ends))
            for layer in layers
        },
    )
    return Assembly(
        plan.layers,
        specs.thetas,
        surroundings,
        inputs,
        targets,
        plan.loss_fn,
        functions,
        plan.input_gradients,
    )


def _stages(plan: Plan, assembly: Assembly) -> list[Stage]:
    compiled = [
        compilation(yes, device)
        for yes, device, layers in zip(
            plan.jit_compile,
            plan.devices,
            by_stage(plan.layers, plan.ends),
            strict=True,
        )
        for _ in layers
    ]
    recomputed = list(plan.recomputed)
    if plan.loss_fn:
        compiled.append(compiled[-1])
        recomputed.append(recomputed[-1])
    calls = assembly.stage_calls(compiled)
    ends = [*plan.ends[:-1], len(calls)]
    return [
        Stage(calls, recomputed)
        for calls, recomputed in zip(
            by_stage(calls, ends), by_stage(recomputed, ends), strict=True
        )
    ]


def _micro_batch_spec(x: tf.TensorSpec) -> tf.TensorSpec:
    return tf.TensorSpec(x.shape[1:], x.dtype)


def specs_for_any_number(arguments: NestedMap) -> NestedMap:
    """Specs of a run's arguments for any number of micro-batches."""
    specs = map_present(spec_of, arguments)
    names = [*_BY_MICRO_BATCH]
    if specs.step is not None and specs.step.shape.rank:
        names.append("step")
    for name in names:
        specs[name] = map_present(
            lambda x: tf.TensorSpec([None, *x.shape[1:]], x.dtype), specs[name]
        )
    return specs
