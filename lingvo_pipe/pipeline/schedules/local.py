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

import dataclasses
from collections.abc import Collection

from lingvo_pipe.pipeline.schedules.one_f_one_b import alternating
from lingvo_pipe.pipeline.schedules.schedule import Schedule


def local(
    num_stages: int, num_micro_batches: int, block_boundaries: Collection[int] = ()
) -> Schedule:
    """Returns a schedule in which each block runs 1F1B, one stage per device.

    Without `block_boundaries`, see `Schedule`, the model is one block.
    """

    def num_later(stage: int) -> int:
        """Returns the number of later stages of the same block."""
        ends = (*block_boundaries, num_stages - 1)
        return min(end for end in ends if end >= stage) - stage

    schedule = alternating(num_stages, num_micro_batches, num_later)
    return dataclasses.replace(schedule, block_boundaries=frozenset(block_boundaries))
