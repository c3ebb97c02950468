"""The order of training examples, a pure function of a seed and a position.

The stream of `n` examples is endless: position `p` has entry `p % n` of the permutation
of epoch `p // n`. Step `s` trains on the `B` positions from `s * B` on. No state is
kept, so a run resumed at any step reads the same examples as an uninterrupted one.
"""

import functools
import hashlib

import numpy as np


@functools.lru_cache(maxsize=4)
def permutation(seed: int, epoch: int, num_examples: int) -> np.ndarray:
    """Returns the numbers below `num_examples` in random order: int64, read-only.

    The order sorts raw Philox output, which NumPy promises never to change. The seed is
    from 0 to 2**64 - 1.
    """
    philox = np.random.Philox(key=np.array([seed, epoch], np.uint64))
    order = np.argsort(philox.random_raw(num_examples), kind="stable")
    order.flags.writeable = False
    return order


def named_seed(seed: int, name: str) -> int:
    """Derives a seed from another seed and a name."""
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return int.from_bytes(digest[:8], "little")


def stream_indices(
    seed: int | None, start: int, stop: int, num_examples: int
) -> np.ndarray:
    """Returns the numbers of the examples at positions `start` to `stop - 1`, int64.

    If the seed is None, the examples of each epoch are in order.
    """
    positions = np.arange(start, stop, dtype=np.int64)
    if seed is None:
        return positions % num_examples
    in_order = [positions[:0]]
    for epoch in range(start // num_examples, -(-stop // num_examples)):
        first = epoch * num_examples
        order = permutation(seed, epoch, num_examples)
        in_order.append(order[max(start - first, 0) : stop - first])
    return np.concatenate(in_order)
