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

from collections.abc import Sequence

from lingvo_pipe.core.checks import check_counts
from lingvo_pipe.pipeline.schedules.schedule import Kind, Op, Schedule


def one_f_one_b(num_stages: int, num_micro_batches: int) -> Schedule:
    """Returns the 1F1B schedule with flush, one stage per device."""
    check_counts(num_stages=num_stages, num_micro_batches=num_micro_batches)
    columns = tuple(
        stage_column(stage, num_stages - 1 - stage, num_micro_batches)
        for stage in range(num_stages)
    )
    return Schedule(num_stages, num_micro_batches, columns)


def stage_column(
    stage: int, num_warm_up: int, num_micro_batches: int
) -> tuple[Op, ...]:
    """Returns a stage's column with `num_warm_up` forward passes of warm-up."""
    forwards, backwards = (
        [Op(kind, m, stage) for m in range(num_micro_batches)]
        for kind in (Kind.FORWARD, Kind.BACKWARD)
    )
    return tuple(alternate(forwards, backwards, num_warm_up))


def alternate(
    forwards: Sequence[Op], backwards: Sequence[Op], num_warm_up: int
) -> list[Op]:
    """Warms up with forward passes, then alternates, then ends with backward passes.

        F F | F B F B F B | B B

    Args:
        forwards: a device's forward passes, in order.
        backwards: its backward passes, in order, of the same number.
        num_warm_up: number of forward passes before the alternation, at most all.
    """
    num_warm_up = min(num_warm_up, len(forwards))
    num_pairs = len(forwards) - num_warm_up
    column = list(forwards[:num_warm_up])
    for pair in zip(forwards[num_warm_up:], backwards[:num_pairs], strict=True):
        column += pair
    return column + list(backwards[num_pairs:])
