"""How much memory a device needs for what is kept between operations. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.schedules.slots import Kept, kept_over_time


def peak_stash_bytes(
    schedule: Schedule, stages: Sequence[Mapping[Kept, int]]
) -> list[int]:
    """The most that each device keeps at a time, in bytes.

    Args:
        schedule: a checked one.
        stages: for each stage, the bytes of what is kept of one micro-batch: for each
            stash that the schedule uses.

    Raises:
        ValueError: if `stages` is of another number of stages.
    """
    if len(stages) != schedule.num_stages:
        raise ValueError(
            "The bytes kept must be those of the schedule's "
            f"{schedule.num_stages} stages; got those of {len(stages)}."
        )

    def peak(device: int) -> int:
        kept_bytes = (
            sum(num * stages[stage][kept] for (stage, kept), num in held.items())
            for held in kept_over_time(schedule, device)
        )
        return max(kept_bytes, default=0)

    return list(map(peak, range(schedule.num_devices)))
