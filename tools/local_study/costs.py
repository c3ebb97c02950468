"""What training by blocks costs, and how long it takes with a device a block. Pure.

All is counted in FLOPs of one example: f of a layer's forward pass, a of the pass of
the head that computes a block's loss. A backward pass has twice as many as its forward
pass.

- **Total cost** is everything that is computed: each block's 3·(its layers' f + a), for
  each example and each step. A layer that the overlapping scheme has in two blocks is
  computed in both.
- **Sequential time** is the longest chain of FLOPs of which each must wait for the one
  before, when every block has a device to itself, all examples of a batch run side by
  side, and nothing but FLOPs takes time. Block k begins its pass of step t when it has
  made its step t - 1 and block k - 1 has handed on its outputs of step t; what that
  one does for its own loss it need not wait for. Backpropagation is one block: nothing
  of it runs side by side but examples.

Not counted are the optimizer, and what waits for all blocks: a global norm to clip by,
and gradients of weights that several blocks share.

After Laskin et al. 2020 (arXiv 2012.03837), which weighs cost against sequential FLOPs.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from lingvo_pipe.local.blocks import Block

_PASSES = 3  # Forward, and backward, which has two products for each of its.


class BlockCost(NamedTuple):
    """FLOPs of a block for one example.

    Attributes:
        handing_on: until the next block has its inputs.
        step: of a whole step, forward and backward, with the head.
    """

    handing_on: float
    step: float


def block_costs(
    blocks: Sequence[Block],
    layer_flops: Sequence[float],
    head_flops: Sequence[float],
) -> list[BlockCost]:
    """What each block costs.

    Args:
        blocks: of the scheme.
        layer_flops: f of each layer.
        head_flops: a of each block; 0 for one whose loss is the model's own.
    """
    costs = []
    for block, head in zip(blocks, head_flops, strict=True):
        forward = sum(layer_flops[block.begin : block.end + block.ahead]) + head
        handing_on = sum(layer_flops[block.begin : block.end])
        costs.append(BlockCost(handing_on, _PASSES * forward))
    return costs


def total_flops(blocks: Sequence[BlockCost], num_examples: int) -> float:
    """The total cost of training on so many examples, over all steps."""
    return num_examples * sum(block.step for block in blocks)


def sequential_flops(blocks: Sequence[BlockCost], num_steps: int) -> float:
    """The sequential time of so many steps.

    A chain goes from block to block by what is handed on, and from step to step within
    a block. The longest that ends in a block makes all its steps but one in the
    costliest block up to there.
    """
    if not num_steps:
        return 0.0
    before = itertools.accumulate((b.handing_on for b in blocks), initial=0.0)
    costliest = itertools.accumulate((b.step for b in blocks), max)
    return max(
        to_here + (num_steps - 1) * largest + block.step
        for to_here, largest, block in zip(before, costliest, blocks, strict=False)
    )
