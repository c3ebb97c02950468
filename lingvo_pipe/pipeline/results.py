"""What a run yields: from totals over micro-batches to means over the mini-batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.optional_nest import pack_present, present
from lingvo_pipe.pipeline.assembly import Assembly
from lingvo_pipe.pipeline.devices.stage_devices import loop_device
from lingvo_pipe.pipeline.loops.stage import Stage
from lingvo_pipe.pipeline.loops.stage_call import StageCall
from lingvo_pipe.pipeline.loops.totals import finish_total
from lingvo_pipe.pipeline.plan import Plan
from lingvo_pipe.pipeline.replicas import added_totals, devices_of_parts, join_parts
from lingvo_pipe.pipeline.side_losses import loss_divisor
from lingvo_pipe.pipeline.tracing.trace import Trace


def results_of(
    plan: Plan,
    assembly: Assembly,
    stages: Sequence[Stage],
    parts: Sequence[NestedMap],
    arguments: NestedMap,
) -> NestedMap:
    """The results of a run, on the devices where the totals are.

    Args:
        plan: what was run.
        assembly: likewise.
        stages: likewise.
        parts: as from `emit_parts`.
        arguments: of the run; see `PipelineFunction`.

    Returns:
        See `PipelineFunction`; `accumulated` is a dict by path.
    """
    raw = join_parts(parts, plan)
    sums = sums_of(
        assembly.layers, assembly.traces, [s for stage in raw.sums for s in stage]
    )
    with tf.device(loop_device(plan.devices[-1])):
        metrics = _metrics(sums, arguments.batch_size)
        divisor = None
        if plan.loss_fn is not None:
            weight = metrics.loss[1]
            divisor = loss_divisor(assembly.traces, weight, arguments.batch_size)
    outputs = input_gradients = None
    if plan.loss_fn is None and not plan.trains:
        outputs = pack_present(assembly.outputs, raw.outputs)
    if plan.input_gradients:
        found = [raw.input_gradients[v] for v in range(len(present(arguments.inputs)))]
        if divisor is not None:
            found = [finish_total(x, divisor, x.dtype) for x in found]
        input_gradients = pack_present(arguments.inputs, found)
    return NestedMap(
        gradients=_gradients(plan, stages, parts, arguments.thetas, divisor),
        metrics=metrics,
        accumulated=sums.accumulated,
        outputs=outputs,
        input_gradients=input_gradients,
        times=raw.times,
    )


def results_of_steps(
    plan: Plan, assembly: Assembly, raw: NestedMap, arguments: NestedMap
) -> NestedMap:
    """The results of several steps, on the devices where they are.

    Returns:
        NestedMap:
            metrics: NestedMap(name=(mean, weight)), stacked by step.
            notes: for each stage what its update noted, stacked by step.
            times: see `Emitter.emit`.
            accumulated: empty; what there was is in the variables.
    """
    totals = [own for stage in raw.sums for own in stage]
    sums = sums_of(assembly.layers, assembly.traces, totals)
    with tf.device(loop_device(plan.devices[-1])):
        metrics = _metrics(sums, arguments.batch_size)
    return NestedMap(metrics=metrics, notes=raw.notes, times=raw.times, accumulated={})


def layer_gradients(
    call: StageCall, theta: Any, packed: Sequence[tf.Tensor], divisor: Any
) -> Any:
    """A layer's gradients in theta's structure; None for what is not trained.

    Args:
        call: of the layer.
        theta: any structure like the layer's weights.
        packed: totals of the gradients of those that are trained.
        divisor: of the totals, `[]` float64; None: 1.
    """
    functions = call.functions
    if divisor is None:
        found = functions.undivided_gradients(*packed)
    else:
        found = functions.final_gradients(*packed, divisor)
    remaining = iter(found)
    flat = [next(remaining) if has else None for has in functions.phases.has_gradient]
    return tf.nest.pack_sequence_as(theta, flat)


def sums_of(
    layers: Sequence[BaseLayer], traces: Sequence[Trace], totals: Sequence[Any]
) -> NestedMap:
    """The totals of all calls by their names.

    Returns:
        NestedMap:
            accumulated: dict by the accumulators' paths.
            losses: dict of side losses by name: sums over examples.
            metrics: dict of pairs (sum, weight) by name.

    Raises:
        ValueError: if what a layer adds has the name of something else.
    """
    found = NestedMap(accumulated={}, losses={}, metrics={})
    of_task: set[str] = set()
    for i, (trace, flat) in enumerate(zip(traces, totals, strict=True)):
        sums = tf.nest.pack_sequence_as(trace.result.sums, flat)
        if i == len(layers):
            of_task = set(sums.metrics) & {*found.losses, *found.metrics}
        for name, total in sums.get("accumulated", {}).items():
            found.accumulated[f"{layers[i].path}/{name}"] = total
        for kind in ("losses", "metrics"):
            for name, value in sums.get(kind, {}).items():
                before = found[kind].get(name)
                if before is not None:
                    value = tf.nest.map_structure(tf.add, before, value)
                found[kind][name] = value
    twice = sorted(of_task | set(found.losses) & set(found.metrics))
    if twice:
        raise ValueError(
            "What layers add must have names of its own: a loss none of a metric, and "
            f"neither one of the task's metrics; {twice} are both. Rename them in "
            "AddLoss or AddMetric."
        )
    return found


def _metrics(sums: NestedMap, batch_size: tf.Tensor) -> NestedMap:
    """Pairs (mean, weight) by name."""
    metrics = NestedMap()
    for name, (total, weight) in sums.metrics.items():
        metrics[name] = (tf.math.divide_no_nan(total, weight), weight)
    for name, total in sums.losses.items():
        number = tf.fill(tf.shape(total), tf.cast(batch_size, total.dtype))
        metrics[name] = (total / number, number)
    return metrics


def _gradients(
    plan: Plan,
    stages: Sequence[Stage],
    parts: Sequence[NestedMap],
    thetas: Any,
    divisor: Any,
) -> list[Any]:
    """For each layer its gradients; the loss, in the last stage, has no weights."""
    calls = [
        (call, [part.gradients[k][i] for part in parts], devices)
        for k, stage in enumerate(stages)
        for devices in [devices_of_parts(plan, k)]
        for i, call in enumerate(stage.calls)
    ]
    found = []
    for (call, totals, devices), theta, home in zip(
        calls, thetas, map(loop_device, plan.homes), strict=False
    ):
        packed = added_totals(call, totals, devices, home)
        with tf.device(home):
            found.append(layer_gradients(call, theta, packed, divisor))
    return found
