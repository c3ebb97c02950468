"""The order of training examples, a pure function of a seed and a position.

Training reads one endless stream of example indices. Position `p` belongs to epoch
`p // n` and reads place `p % n` of that epoch's permutation; step `s` trains on the `B`
positions from `s * B` on, which may reach into the following epoch. Nothing is
remembered from batch to batch, so a run resumed at any step reads what the
uninterrupted run would have read.
"""

from __future__ import annotations

import functools

import numpy as np

_NUM_SEEDS = 2**64


@functools.lru_cache(maxsize=4)
def permutation(seed: int, epoch: int, num_examples: int) -> np.ndarray:
    """Returns the order of one epoch: the numbers below `num_examples`, shuffled.

    The order comes from sorting raw Philox output, the part of NumPy's random numbers
    that is promised never to change, so that a run can be resumed under another NumPy.

    Args:
        seed: Chooses the order; from 0 to 2**64 - 1.
        epoch: The epoch, from 0; each has an order of its own.
        num_examples: The size of the data set.

    Returns:
        A read-only int64 array `[num_examples]`.

    Raises:
        ValueError: If the seed is out of range.
    """
    if not 0 <= seed < _NUM_SEEDS:
        raise ValueError(
            f"seed must lie between 0 and 2**64 - 1; got {seed}. Choose another seed."
        )
    philox = np.random.Philox(key=np.array([seed, epoch], np.uint64))
    order = np.argsort(philox.random_raw(num_examples), kind="stable")
    order.flags.writeable = False
    return order


def stream_indices(
    seed: int | None, start: int, stop: int, num_examples: int
) -> np.ndarray:
    """Returns the examples at positions `start` to `stop` (excluded) of the stream.

    Args:
        seed: Chooses the order; None reads every epoch in the order of the data set.
        start: The first position, from 0.
        stop: The position after the last.
        num_examples: The size of the data set.

    Returns:
        An int64 array `[stop - start]` of numbers below `num_examples`.
    """
    positions = np.arange(start, stop, dtype=np.int64)
    if seed is None:
        return positions % num_examples
    epochs = range(start // num_examples, -(-stop // num_examples))
    in_order = [
        permutation(seed, epoch, num_examples)[
            max(start - epoch * num_examples, 0) : stop - epoch * num_examples
        ]
        for epoch in epochs
    ]
    return np.concatenate([positions[:0], *in_order])
