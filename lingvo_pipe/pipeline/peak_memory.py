"""How much memory a pipeline's tensors take between operations."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

import tensorflow as tf

from lingvo_pipe.pipeline.loops.stage import Stage
from lingvo_pipe.pipeline.loops.stage_call import StageCall
from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.stage_memory import CallBytes, StageMemory


def peak_bytes(
    schedule: Schedule,
    stages: Sequence[Stage],
    specs: Mapping[int, tf.TensorSpec],
    inputs: Iterable[int],
    num_totals: int,
) -> list[int]:
    """For each device of a replica: weights, totals of gradients, the most kept.

    Args:
        schedule: for training.
        stages: its stages.
        specs: of all values, for one micro-batch.
        inputs: the values that are the mini-batch's, which are not kept.
        num_totals: see `call_bytes`.
    """
    calls = [
        call_bytes(call, again, num_totals)
        for stage in stages
        for call, again in zip(stage.calls, stage.recomputed, strict=True)
    ]
    memory = StageMemory(calls, value_bytes(specs, inputs))
    return memory.of_devices(
        schedule, list(itertools.accumulate(len(stage.calls) for stage in stages))
    )


def call_bytes(call: StageCall, recomputed: bool, num_totals: int) -> CallBytes:
    """What a layer or the loss takes.

    Args:
        call: of it.
        recomputed: whether it is where the schedule recomputes.
        num_totals: of how many parts of the mini-batch a device has the totals.
    """
    phases = call.functions.phases
    return CallBytes(
        weights=num_bytes(phases.weights),
        totals=num_bytes(call.functions.totals) * num_totals,
        residuals=num_bytes(phases.residuals),
        weight_residuals=num_bytes(phases.weight_residuals),
        recomputed=recomputed,
        used=call.used,
        made=call.call.made,
    )


def value_bytes(
    specs: Mapping[int, tf.TensorSpec], inputs: Iterable[int]
) -> dict[int, int]:
    """Bytes of the values other than the mini-batch's inputs."""
    left_out = set(inputs)
    return {v: num_bytes([spec]) for v, spec in specs.items() if v not in left_out}


def num_bytes(specs: Iterable[tf.TensorSpec]) -> int:
    """What tensors of these specs take; those whose size a run decides, nothing."""
    return sum((spec.shape.num_elements() or 0) * spec.dtype.size for spec in specs)
