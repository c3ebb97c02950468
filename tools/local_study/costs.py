"""Cost and time of training by blocks with one device per block. Pure.

For one example, a layer's forward pass takes `f` FLOPs. The forward pass of the head
that computes a block's loss takes `a` FLOPs. A backward pass takes twice as many.

- **Total cost** is all computation: each block's 3·(its layers' f + a), for each
  example and step. A layer in two overlapping blocks counts in both.
- **Sequential time** is the longest chain of dependent FLOPs, when every block has its
  own device, all examples of a batch run in parallel, and only FLOPs take time. Block k
  starts step t after its own step t - 1, and after block k - 1 has sent its outputs for
  step t. Block k does not wait for the loss of block k - 1. Backpropagation is one
  block.

The optimizer does not count, and neither do operations that wait for all blocks, such
as a global norm. Both measures follow Laskin et al. 2020 (arXiv 2012.03837).
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import NamedTuple

from lingvo_pipe.local_parallelism.blocks import Block

_PASSES = 3  # Forward, and backward with two products for each forward one.


@dataclasses.dataclass(frozen=True)
class BlockCost:
    """FLOPs of a block for one example."""

    forward: float  # Of its layers' forward pass, until the next block has its inputs.
    step: float  # Of a whole step, forward and backward, with the head.


class Point(NamedTuple):
    """Total cost and sequential time of a training."""

    cost: float
    time: float


def block_costs(
    blocks: Sequence[Block], layer_flops: Sequence[float], head_flops: Sequence[float]
) -> list[BlockCost]:
    """Returns the costs of blocks, from FLOPs of their layers (f) and heads (a).

    The last block has the model's own loss without a head, so its `head_flops` are 0.
    """
    return [
        BlockCost(
            sum(layer_flops[block.begin : block.end]),
            _PASSES * (sum(layer_flops[block.begin : block.end + block.ahead]) + head),
        )
        for block, head in zip(blocks, head_flops, strict=True)
    ]


def total_flops(blocks: Sequence[BlockCost], num_examples: int) -> float:
    """Returns the total cost of training, for the number of examples in all steps."""
    return num_examples * sum(block.step for block in blocks)


def sequential_flops(blocks: Sequence[BlockCost], num_steps: int) -> float:
    """Returns the sequential time of `num_steps` training steps.

    The longest chain of steps runs all steps but one in its costliest block.
    """
    if not num_steps:
        return 0.0
    before = itertools.accumulate((b.forward for b in blocks), initial=0.0)
    costliest = itertools.accumulate((b.step for b in blocks), max)
    return max(
        to_here + (num_steps - 1) * largest + block.step
        for to_here, largest, block in zip(before, costliest, blocks, strict=False)
    )
