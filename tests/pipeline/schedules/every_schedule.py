"""Schedules of all generators, for many sizes."""

import functools
import itertools
from collections.abc import Iterator

from lingvo_pipe.pipeline.schedules.building_block import v_half, v_min
from lingvo_pipe.pipeline.schedules.by_rule import (
    gpipe,
    interleaved,
    one_f_one_b,
    zero_bubble,
)
from lingvo_pipe.pipeline.schedules.offload import offloaded
from lingvo_pipe.pipeline.schedules.recompute import POLICIES, recomputed
from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.schedules.split_backward import (
    dualpipe_v,
    interleaved_zero_bubble,
    zero_bubble_v,
)

SIZES = list(itertools.product([1, 2, 3, 4, 7], [1, 2, 3, 4, 6, 9]))


@functools.cache
def plain_schedules() -> tuple[tuple[str, Schedule], ...]:
    """Returns the generators' schedules, with names."""
    return tuple(_plain_schedules())


@functools.cache
def every_schedule() -> tuple[tuple[str, Schedule], ...]:
    """Returns plain schedules, and those that train recomputed by each policy.

    Some are offloaded too.
    """
    return tuple(_every_schedule())


def _plain_schedules() -> Iterator[tuple[str, Schedule]]:
    for sizes in SIZES:
        yield f"evaluation{sizes}", gpipe(*sizes).forward_part()
        for generate in (gpipe, one_f_one_b, zero_bubble):
            yield f"{generate.__name__}{sizes}", generate(*sizes)
        for make in (zero_bubble_v, v_half, v_min, dualpipe_v):
            yield f"{make.__name__}{sizes}", make(*sizes)
        for interleave in (interleaved, interleaved_zero_bubble):
            for num_stages in (1, 2, 3):
                name = f"{interleave.__name__}{(*sizes, num_stages)}"
                yield name, interleave(*sizes, num_stages)


def _every_schedule() -> Iterator[tuple[str, Schedule]]:
    for name, schedule in plain_schedules():
        yield name, schedule
        if schedule.has_backward:
            for policy in set(POLICIES) - {"never"}:
                yield f"{name} recomputed {policy}", recomputed(schedule, policy)
            if schedule.num_devices == 3 and schedule.num_micro_batches in (4, 9):
                yield f"{name} offloaded", offloaded(schedule)
                both = offloaded(recomputed(schedule, "always"))
                yield f"{name} recomputed and offloaded", both
