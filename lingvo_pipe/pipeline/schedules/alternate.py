"""One forward, one backward: the pattern that several schedules share. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from lingvo_pipe.pipeline.schedules.schedule import Op


def alternate(
    forwards: Sequence[Op], backwards: Sequence[Op], num_warm_up: int
) -> list[Op]:
    """Warms up with forward passes, then alternates, then ends with backward passes.

        F F | F B F B F B | B B

    Args:
        forwards: the forward passes of a device, in order.
        backwards: its backward passes, in order; as many.
        num_warm_up: how many forward passes come before the alternation; where there
            are not so many, all do.
    """
    num_warm_up = min(num_warm_up, len(forwards))
    num_pairs = len(forwards) - num_warm_up
    column = list(forwards[:num_warm_up])
    for pair in zip(forwards[num_warm_up:], backwards[:num_pairs], strict=True):
        column += pair
    return column + list(backwards[num_pairs:])
