r"""Blocks of stages, each trained by a loss of its own. Pure.

For 3 blocks of a stage each and 4 micro-batches, time to the right:

    device 2 |       F0 B0 F1 B1 F2 B2 F3 B3
    device 1 |    F0 B0 F1 B1 F2 B2 F3 B3
    device 0 | F0 B0 F1 B1 F2 B2 F3 B3

No gradient crosses from a block to the previous one (Laskin et al. 2020, figure 2), so
no block waits for another's backward pass. A device stashes one micro-batch, and the
bubble ends when the first activations arrive. Within a block, stages run 1F1B.
"""

from __future__ import annotations

from collections.abc import Collection

from lingvo_pipe.core.checks import check_counts
from lingvo_pipe.pipeline.schedules.one_f_one_b import stage_column
from lingvo_pipe.pipeline.schedules.schedule import Schedule


def local(
    num_stages: int, num_micro_batches: int, block_boundaries: Collection[int] = ()
) -> Schedule:
    """Returns a schedule in which each block runs 1F1B, one stage per device.

    Args:
        num_stages: K.
        num_micro_batches: M.
        block_boundaries: see `Schedule`. If empty, the model is one block and runs
            1F1B.
    """
    check_counts(num_stages=num_stages, num_micro_batches=num_micro_batches)
    boundaries = sorted({*block_boundaries, num_stages - 1})
    columns = []
    for stage in range(num_stages):
        last = next(end for end in boundaries if end >= stage)
        columns.append(stage_column(stage, last - stage, num_micro_batches))
    return Schedule(
        num_stages, num_micro_batches, tuple(columns), frozenset(block_boundaries)
    )
