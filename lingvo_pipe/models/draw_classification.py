"""Draws classified images and confused classes. Needs matplotlib; no TensorFlow.

Shapes: images of H x W pixels in C channels.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from lingvo_pipe.models.classified_image import ClassifiedImage
from lingvo_pipe.models.confusion import Confusion

_RIGHT, _WRONG, _DARK, _LIGHT = "#2e7d4f", "#b3261e", "#262626", "#ffffff"
_INCHES_PER_IMAGE = 1.5
_INCHES_PER_CLASS, _INCHES_OF_NAMES = 0.36, 1.8
_LONGEST_NAME = 18
_DPI = 110


def draw_images(images: Sequence[ClassifiedImage], name: Callable[[int], str]) -> bytes:
    """Images in a square, each with its class; if another is predicted, with both.

    Args:
        images: at least one.
        name: gives the name of a class.

    Returns:
        A PNG.
    """
    side = math.ceil(math.sqrt(len(images)))
    num_rows = math.ceil(len(images) / side)
    size = side * _INCHES_PER_IMAGE, num_rows * _INCHES_PER_IMAGE * 1.2
    figure = Figure(figsize=size, dpi=_DPI, layout="constrained")
    panels = figure.subplots(num_rows, side, squeeze=False).ravel()
    for panel in panels:
        panel.set_axis_off()
    for panel, image in zip(panels, images, strict=False):
        is_right = image.label == image.predicted
        title = _short(name(image.predicted))
        if not is_right:
            title += f"\nnot {_short(name(image.label))}"
        panel.imshow(displayed(image.pixels), cmap="gray", vmin=0.0, vmax=1.0)
        color = _RIGHT if is_right else _WRONG
        panel.set_title(title, fontsize=8, color=color, parse_math=False)
    return _png(figure)


def displayed(pixels: np.ndarray) -> np.ndarray:
    """`[H, W, C]` of any range -> `[H, W, 3]` or `[H, W]` from 0 to 1.

    The darkest value becomes 0 and the brightest 1: what transforms have made of the
    pixels may lie anywhere. Of other than three channels the mean is shown.
    """
    if pixels.shape[-1] != 3:
        pixels = pixels.mean(-1)
    low, high = pixels.min(), pixels.max()
    return (pixels - low) / (high - low if high > low else 1.0)


def draw_confusion(
    confusion: Confusion, classes: np.ndarray, names: Sequence[str]
) -> bytes:
    """A matrix of counts, each as dark as its share of the true class is large.

    Args:
        confusion: the counts.
        classes: int [.], at least one: the classes to show.
        names: of these classes.

    Returns:
        A PNG.
    """
    size = len(classes) * _INCHES_PER_CLASS + _INCHES_OF_NAMES
    figure = Figure(figsize=(size, size), dpi=_DPI, layout="constrained")
    panel = figure.subplots()
    shares = confusion.shares(classes)
    panel.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0)
    counts = confusion.counts[np.ix_(classes, classes)]
    for (row, column), count in np.ndenumerate(counts):
        if count:
            color = _LIGHT if shares[row, column] > 0.5 else _DARK
            panel.text(
                *(column, row, str(count)),
                ha="center",
                va="center",
                fontsize=7,
                color=color,
            )
    labels = [_short(name) for name in names]
    places = range(len(classes))
    style: dict[str, Any] = {"fontsize": 7, "parse_math": False}
    panel.set_xticks(places, labels, rotation=90, **style)
    panel.set_yticks(places, labels, **style)
    panel.set_xlabel("predicted", color=_DARK)
    panel.set_ylabel("true", color=_DARK)
    if len(classes) < len(confusion.counts):
        panel.set_title(
            f"the most confused of {len(confusion.counts)} classes", fontsize=9
        )
    return _png(figure)


def _short(name: str) -> str:
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[: _LONGEST_NAME - 1]}\N{HORIZONTAL ELLIPSIS}"


def _png(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()
