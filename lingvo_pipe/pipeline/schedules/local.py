r"""Blocks of stages that are trained each by its own loss. Pure.

For 3 blocks of a stage each and 4 micro-batches, time to the right:

    device 2 |       F0 B0 F1 B1 F2 B2 F3 B3
    device 1 |    F0 B0 F1 B1 F2 B2 F3 B3
    device 0 | F0 B0 F1 B1 F2 B2 F3 B3

No gradient crosses from a block to the one before (Laskin et al. 2020, figure 2), so
none waits for a backward pass of another: a device keeps one micro-batch, and the
bubble is the time until the first activations have come. A block's stages run 1F1B.
"""

from __future__ import annotations

from collections.abc import Collection

from lingvo_pipe.pipeline.schedules.one_f_one_b import one_forward_one_backward
from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.schedules.sizes import check_sizes


def local(
    num_stages: int, num_micro_batches: int, block_ends: Collection[int] = ()
) -> Schedule:
    """Each block runs 1F1B by itself; a device a stage.

    Args:
        num_stages: K.
        num_micro_batches: M.
        block_ends: see `Schedule`; none: the model is one block, and this is 1F1B.
    """
    check_sizes(num_stages=num_stages, num_micro_batches=num_micro_batches)
    ends = sorted({*block_ends, num_stages - 1})
    columns = []
    for stage in range(num_stages):
        last = next(end for end in ends if end >= stage)
        columns.append(one_forward_one_backward(stage, last - stage, num_micro_batches))
    return Schedule(
        num_stages, num_micro_batches, tuple(columns), frozenset(block_ends)
    )
