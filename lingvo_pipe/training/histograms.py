"""How the numbers of an array are distributed. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np

_NUM_BUCKETS = 30  # As many as TensorBoard's own summaries have.


def buckets(values: Any) -> np.ndarray:
    """Counts numbers between the least and the largest of them.

    What is not finite is in no bucket.

    Args:
        values: numbers, `[...]`.

    Returns:
        float64 `[N, 3]`: for each of N buckets of one width its left end, its right
        end, and how many numbers are in it, those at its right end only in the last.
        Equal numbers are one bucket without width, and none are no buckets.
    """
    numbers = np.asarray(values).astype(np.float64).ravel()
    numbers = numbers[np.isfinite(numbers)]
    if not len(numbers):
        return np.zeros([0, 3])
    low, high = numbers.min(), numbers.max()
    if low == high:
        return np.array([[low, high, len(numbers)]])
    edges = np.linspace(low, high, _NUM_BUCKETS + 1)
    counts, _ = np.histogram(numbers, edges)
    return np.stack([edges[:-1], edges[1:], counts], axis=1)
