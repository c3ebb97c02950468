"""Peak memory of a pipeline's tensors, from traced stages."""

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.nests import spec_of
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.pipeline.devices.device_names import device_name
from lingvo_pipe.pipeline.loops.dataflow import LayerValues
from lingvo_pipe.pipeline.loops.stage import Stage
from lingvo_pipe.pipeline.loops.traced_layers import PlacedLayer, viewed_values
from lingvo_pipe.pipeline.memory.call_bytes import CallBytes, SharedWeight
from lingvo_pipe.pipeline.memory.host_bytes import host_bytes
from lingvo_pipe.pipeline.memory.stage_memory import StageMemory
from lingvo_pipe.pipeline.memory.workspace import num_bytes, workspace_of
from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.tracing.phases import Phases
from lingvo_pipe.pipeline.tracing.views import Buffers


def peak_bytes(
    schedule: Schedule,
    stages: Sequence[Stage],
    specs: Mapping[int, tf.TensorSpec],
    inputs: Iterable[int],
    num_accumulators: int,
    shared_weights: Sequence[SharedWeight],
    devices: Sequence[str],
    on_host: bool = False,
) -> list[int]:
    """Returns the peak bytes of each device, or what it offloads if `on_host`.

    `devices` are the devices of the stages. What a CPU offloads stays in its memory.

    `specs` are the specs of all values, for one micro-batch. The values `inputs` belong
    to the mini-batch and are not stashed. See `bytes_of_calls` for `num_accumulators`.
    """
    calls = bytes_of_calls(
        [layer for stage in stages for layer in stage.layers],
        [is_recomputed for stage in stages for is_recomputed in stage.recomputed],
        num_accumulators,
        [
            is_offloaded and (on_host or not device_name(device).has_host_memory)
            for stage, device in zip(stages, devices, strict=True)
            for is_offloaded in stage.offloaded
        ],
    )
    memory = StageMemory(
        calls, value_bytes(specs, inputs), shared_weights=shared_weights
    )
    boundaries = list(itertools.accumulate(len(stage.layers) for stage in stages))
    if on_host:
        return host_bytes(memory, schedule, boundaries)
    return memory.of_devices(schedule, boundaries)


def bytes_of_calls(
    layers: Sequence[PlacedLayer],
    recomputed: Sequence[bool],
    num_accumulators: int,
    offloaded: Sequence[bool] = (),
) -> list[CallBytes]:
    """Returns the bytes of a model's layers, and of the loss if there is one.

    The loss is the last of `layers`. `recomputed` and `offloaded` are True for layers
    with this role if the schedule recomputes or offloads. If `offloaded` is empty, no
    layer has it. A device holds the accumulators of `num_accumulators` batch shards.
    """
    source = viewed_values(layers)
    workspace = functools.cache(lambda packed: workspace_of(packed.phases))
    calls = []
    offloaded = offloaded or [False] * len(layers)
    for layer, is_recomputed, is_offloaded in zip(
        layers, recomputed, offloaded, strict=True
    ):
        phases, values = layer.functions.phases, layer.values
        residuals, residual_values = _residuals(phases.residual_buffers, values, source)
        late, late_values = _residuals(phases.weight_residual_buffers, values, source)
        calls.append(
            CallBytes(
                weights=num_bytes([*phases.weights, *phases.casts]),
                accumulators=num_bytes(layer.functions.accumulators) * num_accumulators,
                residuals=residuals,
                weight_residuals=late,
                recomputed=is_recomputed,
                used=layer.used,
                made=values.made,
                residual_values=residual_values,
                weight_residual_values=late_values,
                new_weight_residuals=_new_bytes(phases),
                workspace=workspace(layer.functions),
                offloaded=is_offloaded,
            )
        )
    return calls


def shared_weights(
    layers: Sequence[BaseLayer], num_replicas: int = 1
) -> list[SharedWeight]:
    """Returns the weights that several of a model's layers share, with one replica.

    With several replicas, returns none: each device of a stage owns some layers, and
    has copies of the other layers' weights. A layer that occurs several times in
    `layers` stands for equal layers, whose weights are not tied.
    """
    calls: dict[Any, dict[BaseLayer, int]] = {}
    for i, layer in enumerate(layers):
        for weight in layer.VariablePaths().values():
            calls.setdefault(weight.ref(), {}).setdefault(layer, i)
    return [
        SharedWeight(num_bytes([spec_of(x.deref())]), list(users.values()))
        for x, users in calls.items()
        if len(users) > 1 and num_replicas == 1
    ]


def _new_bytes(phases: Phases) -> int:
    """Returns the bytes of a layer's own buffers that hold only weight residuals."""
    before = {x.ref() for x in phases.residual_buffers.own}
    late = phases.weight_residual_buffers.own
    return num_bytes(spec_of(x) for x in late if x.ref() not in before)


def _residuals(
    buffers: Buffers, layer: LayerValues, source: Mapping[int, int]
) -> tuple[int, tuple[int, ...]]:
    """Returns (bytes of the buffers that only the layer has, values in the others)."""
    values = [layer.args[i] for i in buffers.args] + [
        layer.made[i] for i in buffers.made
    ]
    shared = tuple(sorted({source.get(value, value) for value in values}))
    return num_bytes(map(spec_of, buffers.own)), shared


def value_bytes(
    specs: Mapping[int, tf.TensorSpec], inputs: Iterable[int]
) -> dict[int, int]:
    """Returns the bytes of each value by number, except the mini-batch's inputs."""
    excluded = set(inputs)
    return {v: num_bytes([spec]) for v, spec in specs.items() if v not in excluded}
