"""Cosines of gradients. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np


def cosine(
    ours: Mapping[str, np.ndarray],
    others: Mapping[str, np.ndarray],
    paths: Iterable[str],
) -> float | None:
    """The cosine of two gradients, each of several arrays as if they were one.

    Args:
        ours: arrays by their variables' paths.
        others: likewise, of equal shapes.
        paths: of the variables that count.

    Returns:
        In [-1, 1]; None: there is no such path, or a gradient is 0.
    """
    product = our_square = other_square = 0.0
    for path in paths:
        a, b = (x[path].astype(np.float64).ravel() for x in (ours, others))
        product += float(a @ b)
        our_square += float(a @ a)
        other_square += float(b @ b)
    length = math.sqrt(our_square) * math.sqrt(other_square)
    return product / length if length else None
