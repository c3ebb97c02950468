"""Whether a schedule that a pipeline is given may take the place of its own. Pure."""

from __future__ import annotations

from lingvo_pipe.pipeline.pipelining_rules import faults_of
from lingvo_pipe.pipeline.schedules.check import check
from lingvo_pipe.pipeline.schedules.schedule import Schedule


def checked_schedule(schedule: Schedule | None, own: Schedule, where: str) -> Schedule:
    """The schedule to train with.

    Args:
        schedule: that given; None: the layer's own.
        own: the layer's.
        where: the layer's path.

    Raises:
        ValueError: if it can't run to its end, trains nothing, or is of other stages,
            devices or micro-batches.
    """
    if schedule is None:
        return own
    if not isinstance(schedule, Schedule):
        raise ValueError(
            f"schedule must be a Schedule, or None for that of {where}; got "
            f"{schedule!r}. For one by its name see make_schedule."
        )
    with faults_of("schedule", where):
        check(schedule)
    if not schedule.has_backward:
        raise ValueError(
            "A schedule for ComputeGradients must have backward passes; that given "
            f"to {where} has none. Use ComputeMetrics."
        )
    if (schedule.device_of_stage(), schedule.num_micro_batches) != (
        own.device_of_stage(),
        own.num_micro_batches,
    ):
        raise ValueError(
            "A schedule must have the layer's stages on their devices, and its "
            f"number of micro-batches; {where} has {own.num_micro_batches} "
            f"micro-batches and devices {own.device_of_stage()} by stage, the "
            f"schedule {schedule.num_micro_batches} and "
            f"{schedule.device_of_stage()}. Make it of the layer's sizes."
        )
    return schedule
