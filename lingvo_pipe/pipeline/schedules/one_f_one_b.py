r"""1F1B: one forward, one backward, with flush (arXiv 2006.09503). Pure.

For 3 stages and 4 micro-batches, time to the right, a backward as long as a forward:

    device 2 |       F0 B0 F1 B1 F2 B2 F3 B3
    device 1 |    F0 F1    B0 F2 B1 F3 B2    B3
    device 0 | F0 F1 F2       B0 F3 B1    B2    B3

The bubble is GPipe's, but device k stashes at most K - k micro-batches, however many
there are: once the pipeline is full, it runs one forward for each backward. At the end
of the mini-batch it drains ("with flush"), so all passes see the same weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from lingvo_pipe.core.checks import check_counts
from lingvo_pipe.pipeline.schedules.schedule import Kind, Op, Schedule


def one_f_one_b(num_stages: int, num_micro_batches: int) -> Schedule:
    """Returns the 1F1B schedule with flush, one stage per device."""
    return alternating(
        num_stages, num_micro_batches, lambda stage: num_stages - 1 - stage
    )


def alternating(
    num_stages: int, num_micro_batches: int, num_warm_up: Callable[[int], int]
) -> Schedule:
    """Returns a schedule of one stage per device; `num_warm_up` is by stage."""
    check_counts(num_stages=num_stages, num_micro_batches=num_micro_batches)

    def column(stage: int) -> tuple[Op, ...]:
        forwards, backwards = (
            [Op(kind, m, stage) for m in range(num_micro_batches)]
            for kind in (Kind.FORWARD, Kind.BACKWARD)
        )
        return alternate(forwards, backwards, num_warm_up(stage))

    columns = tuple(map(column, range(num_stages)))
    return Schedule(num_stages, num_micro_batches, columns)


def alternate(
    forwards: Sequence[Op], backwards: Sequence[Op], num_warm_up: int
) -> tuple[Op, ...]:
    """Warms up with forward passes, then alternates, then ends with backward passes.

        F F | F B F B F B | B B

    Takes a device's forward passes and as many backward passes, in order. If all of
    them are warm-up, nothing alternates.
    """
    pairs = zip(forwards[num_warm_up:], backwards, strict=False)
    return (
        *forwards[:num_warm_up],
        *itertools.chain.from_iterable(pairs),
        *backwards[max(len(forwards) - num_warm_up, 0) :],
    )
