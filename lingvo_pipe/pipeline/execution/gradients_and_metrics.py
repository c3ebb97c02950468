"""Gradients and mini-batch means of a run, computed from its accumulated sums."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.nests import is_differentiable, pack_present, present, wide_sum
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.devices.stage_devices import loop_device
from lingvo_pipe.pipeline.execution.auxiliary_losses import loss_divisor
from lingvo_pipe.pipeline.execution.pipeline_spec import PipelineSpec
from lingvo_pipe.pipeline.execution.replicas import (
    join_batch_shards,
    summed_accumulators,
)
from lingvo_pipe.pipeline.loops.packed_phases import finish_accumulation
from lingvo_pipe.pipeline.loops.run_data import LoopResults, RunArguments, RunResults
from lingvo_pipe.pipeline.loops.stage import Stage
from lingvo_pipe.pipeline.loops.stage_update import pack_trained
from lingvo_pipe.pipeline.loops.stash import Pack
from lingvo_pipe.pipeline.loops.traced_layers import PlacedLayer, TracedLayers
from lingvo_pipe.pipeline.tracing.loss_function import Total


def results_of(
    spec: PipelineSpec,
    traced: TracedLayers,
    stages: Sequence[Stage],
    shards: Sequence[LoopResults],
    arguments: RunArguments,
    thetas: Sequence[Any],
) -> RunResults:
    """Computes a run's results from its batch shards' results. `thetas` are specs."""
    joined = join_batch_shards(shards, spec)
    sums = sums_of(traced, itertools.chain(*(stage.sums for stage in joined.stages)))
    with tf.device(loop_device(spec.layout.devices[-1])):
        metrics = _metrics(sums, arguments.batch_size)
        divisor = None
        if spec.loss_fn is not None and not spec.update:
            weight = metrics.loss[1]
            divisor = loss_divisor(traced.traces, weight, arguments.batch_size)
    outputs = input_gradients = None
    if spec.loss_fn is None and not spec.trains:
        outputs = pack_present(traced.outputs, joined.stages[-1].outputs)
    if spec.input_gradients:
        numbers = range(len(present(arguments.inputs)))
        totals = [joined.input_gradients[value] for value in numbers]
        if divisor is not None:
            totals = [
                finish_accumulation(x, divisor, x.dtype) if is_differentiable(x) else x
                for x in totals
            ]
        input_gradients = pack_present(arguments.inputs, totals)
    gradients = []
    if not spec.update:
        gradients = _gradients(spec, stages, shards, thetas, divisor)
    return RunResults(
        gradients=gradients,
        metrics=metrics,
        accumulated={} if spec.update else dict(sums.accumulated),
        outputs=outputs,
        input_gradients=input_gradients,
        notes=[stage.notes for stage in joined.stages],
        times=joined.times,
    )


def layer_gradients(layer: PlacedLayer, theta: Any, packed: Pack, divisor: Any) -> Any:
    """Returns a layer's gradients in theta's structure. Untrained weights have None.

    The packed accumulators are divided by `divisor`, `[]` float64, unless it is None.
    """
    gradients = layer.functions.final_gradients(packed, divisor)
    return pack_trained(theta, layer.functions.phases.has_gradient, gradients)


def sums_of(traced: TracedLayers, by_layer: Iterable[Any]) -> NestedMap:
    """Merges the sums of all layers by name. Losses or metrics of one name are added.

    Each sum is cast back from the accumulator's dtype to the dtype of its terms.

    Returns:
        NestedMap:
            accumulated: dict by the accumulators' paths.
            losses: dict of auxiliary losses by name: sums over examples.
            metrics: dict of pairs (sum, weight) by name.

    Raises:
        ValueError: if a name is used for several kinds of losses or metrics.
    """
    merged = NestedMap(accumulated={}, losses={}, metrics={})
    used_twice: set[str] = set()
    layers = traced.layers
    for i, (trace, flat) in enumerate(zip(traced.traces, by_layer, strict=True)):
        own = tf.nest.flatten(trace.result.sums)
        flat = [tf.cast(x, spec.dtype) for x, spec in zip(flat, own, strict=True)]
        sums = tf.nest.pack_sequence_as(trace.result.sums, flat)
        if i == len(layers):  # The task's loss.
            used_twice = set(sums.metrics) & {*merged.losses, *merged.metrics}
        for name, total in sums.get("accumulated", {}).items():
            merged.accumulated[f"{layers[i].path}/{name}"] = total
        for kind in ("losses", "metrics"):
            for name, value in sums.get(kind, {}).items():
                before = merged[kind].get(name)
                if before is not None:
                    value = tf.nest.map_structure(wide_sum, before, value)
                merged[kind][name] = value
    used_twice |= set(merged.losses) & set(merged.metrics)
    if used_twice:
        raise UserValueError(
            path="AddLoss, AddMetric",
            expected="names that no other losses or metrics of the model have",
            got=sorted(used_twice),
        )
    return merged


def _metrics(sums: NestedMap, batch_size: tf.Tensor) -> NestedMap:
    metrics = NestedMap()
    for name, metric_sums in sums.metrics.items():
        if isinstance(metric_sums, Total):
            metrics[name] = metric_sums
        else:
            total, weight = metric_sums
            metrics[name] = (tf.math.divide_no_nan(total, weight), weight)
    for name, total in sums.losses.items():
        number = tf.fill(tf.shape(total), tf.cast(batch_size, total.dtype))
        metrics[name] = (total / number, number)
    return metrics


def _gradients(
    spec: PipelineSpec,
    stages: Sequence[Stage],
    shards: Sequence[LoopResults],
    thetas: Any,
    divisor: Any,
) -> list[Any]:
    places = [
        (k, i) for k, stage in enumerate(stages) for i in range(len(stage.layers))
    ]
    gradients = []
    for (k, i), theta, owner in zip(  # The loss has no weights.
        places, thetas, map(loop_device, spec.layout.owners), strict=False
    ):
        layer = stages[k].layers[i]
        accumulators = [shard.stages[k].gradients[i] for shard in shards]
        packed = summed_accumulators(layer, accumulators, spec, k, owner)
        with tf.device(owner):
            gradients.append(layer_gradients(layer, theta, packed, divisor))
    return gradients
