"""Peak memory of a pipeline's tensors between operations, from traced stages."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

import tensorflow as tf

from lingvo_pipe.pipeline.loops.stage import Stage
from lingvo_pipe.pipeline.loops.stage_call import StageCall
from lingvo_pipe.pipeline.memory.stage_memory import CallBytes, StageMemory
from lingvo_pipe.pipeline.schedules.schedule import Schedule


def peak_bytes(
    schedule: Schedule,
    stages: Sequence[Stage],
    specs: Mapping[int, tf.TensorSpec],
    inputs: Iterable[int],
    num_accumulators: int,
) -> list[int]:
    """Returns the bytes of weights, accumulators and peak stash for each device.

    `specs` are of all values, for one micro-batch; of these, `inputs` belong to the
    mini-batch and are not stashed. See `call_bytes` for `num_accumulators`.
    """
    calls = [
        call_bytes(call, is_recomputed, num_accumulators)
        for stage in stages
        for call, is_recomputed in zip(stage.calls, stage.recomputed, strict=True)
    ]
    memory = StageMemory(calls, value_bytes(specs, inputs))
    return memory.of_devices(
        schedule, list(itertools.accumulate(len(stage.calls) for stage in stages))
    )


def call_bytes(call: StageCall, recomputed: bool, num_accumulators: int) -> CallBytes:
    """Returns the bytes of a layer or the loss.

    A device holds the accumulators of `num_accumulators` batch shards.
    """
    phases = call.functions.phases
    return CallBytes(
        weights=num_bytes([*phases.weights, *phases.casts]),
        accumulators=num_bytes(call.functions.accumulators) * num_accumulators,
        residuals=num_bytes(phases.residuals),
        weight_residuals=num_bytes(phases.weight_residuals),
        recomputed=recomputed,
        used=call.used,
        made=call.call.made,
    )


def value_bytes(
    specs: Mapping[int, tf.TensorSpec], inputs: Iterable[int]
) -> dict[int, int]:
    """Returns the bytes of all values except the mini-batch's inputs."""
    excluded = set(inputs)
    return {v: num_bytes([spec]) for v, spec in specs.items() if v not in excluded}


def num_bytes(specs: Iterable[tf.TensorSpec]) -> int:
    """Returns the bytes of tensors; tensors of unknown size count as 0."""
    return sum((spec.shape.num_elements() or 0) * spec.dtype.size for spec in specs)
