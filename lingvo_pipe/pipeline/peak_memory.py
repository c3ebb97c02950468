"""How much memory a pipeline's tensors take between operations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import tensorflow as tf

from lingvo_pipe.pipeline.loops.stage import Stage
from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.schedules.slots import Kept
from lingvo_pipe.pipeline.simulation.peak_stash import peak_stash_bytes


def peak_bytes(
    schedule: Schedule,
    stages: Sequence[Stage],
    specs: Mapping[int, tf.TensorSpec],
    inputs: Iterable[int],
) -> list[int]:
    """For each device: weights, totals of gradients, and the most that is kept.

    A tensor that two layers keep counts twice, although it is there once.

    Args:
        schedule: for training.
        stages: its stages.
        specs: of all values, for one micro-batch.
        inputs: the values that are the mini-batch's, which are not kept.
    """
    kept = [_kept_bytes(stage, specs, set(inputs)) for stage in stages]
    peaks = peak_stash_bytes(schedule, kept)
    for stage, device in schedule.device_of_stage().items():
        for call in stages[stage].calls:
            functions = call.functions
            peaks[device] += num_bytes([*functions.phases.weights, *functions.totals])
    return peaks


def _kept_bytes(
    stage: Stage, specs: Mapping[int, tf.TensorSpec], inputs: set[int]
) -> dict[Kept, int]:
    """What a stage keeps of one micro-batch, by stash."""
    phases = [call.functions.phases for call in stage.calls]
    kept = [p for p, again in zip(phases, stage.recomputed, strict=True) if not again]
    saved = [specs[value] for value in stage.saved if value not in inputs]
    return {
        Kept.INPUTS: num_bytes(saved) + sum(num_bytes(p.residuals) for p in kept),
        Kept.RESIDUALS: sum(num_bytes(p.residuals) for p in phases),
        Kept.WEIGHT_RESIDUALS: sum(num_bytes(p.weight_residuals) for p in phases),
    }


def num_bytes(specs: Iterable[tf.TensorSpec]) -> int:
    """What tensors of these specs take."""
    return sum((spec.shape.num_elements() or 0) * spec.dtype.size for spec in specs)
