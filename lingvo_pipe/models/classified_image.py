"""An image, and what a classifier took it for.

Shapes: H x W pixels in C channels.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class ClassifiedImage(NamedTuple):
    """One example.

    Attributes:
        pixels: [H, W, C], of any range.
        label: the true class.
        predicted: the class that it was taken for.
    """

    pixels: np.ndarray
    label: int
    predicted: int
