"""Images of an evaluation: examples `[H, W, C]`, and the confusion of N classes."""

import io
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from lingvo_pipe.nested_map import NestedMap

_NUM_IMAGES = 16
# Beyond this number the counts would take more than 16 MiB.
_MAX_CLASSES_COUNTED = 2048
_MAX_CLASSES_SHOWN = 20  # with legible names and counts

_RIGHT, _WRONG, _DARK, _LIGHT = "#2e7d4f", "#b3261e", "#262626", "#ffffff"
_INCHES_PER_IMAGE = 1.5
_INCHES_PER_CLASS, _INCHES_OF_NAMES = 0.36, 1.8
_MAX_NAME_LENGTH = 18
_DPI = 110


class ClassificationImages:
    """EvalImages of a classification: the first images, and a confusion matrix.

    Examples of weight 0 do not count. Inputs other than images are only counted in the
    matrix. A large matrix shows only the most confused classes. Names are in the order
    of the labels. Labels without a name are shown as numbers.
    """

    def __init__(self, class_names: Sequence[str] = ()):
        self._names = class_names
        self.images: list[ClassifiedImage] = []
        self.confusion: Confusion | None = None

    def Add(self, input_batch: NestedMap, predictions: tf.Tensor) -> None:
        """Adds a batch: images `[B, H, W, C]`, labels, weights and logits `[B, N]`."""
        counts = np.asarray(input_batch.weight) > 0
        labels = np.asarray(input_batch.label)[counts]
        predicted = tf.argmax(predictions, -1).numpy()[counts]
        num_classes = predictions.shape[-1]
        if num_classes <= _MAX_CLASSES_COUNTED:
            self.confusion = self.confusion or Confusion(num_classes)
            self.confusion.add(labels, predicted)
        num_missing = _NUM_IMAGES - len(self.images)
        if num_missing and len(input_batch.image.shape) == 4:
            rows = np.flatnonzero(counts)[:num_missing]
            pixels = tf.gather(input_batch.image, rows).numpy()
            triples = zip(pixels, labels.tolist(), predicted.tolist(), strict=False)
            self.images += [ClassifiedImage(*triple) for triple in triples]

    def Draw(self) -> dict[str, bytes]:
        """Returns the PNGs `images` and `confusion`, each if there is data for it."""
        drawn = {}
        if self.images:
            drawn["images"] = draw_images(self.images, self._name)
        if self.confusion is not None:
            classes = self.confusion.most_confused(_MAX_CLASSES_SHOWN)
            if len(classes):
                names = [self._name(c) for c in classes]
                drawn["confusion"] = draw_confusion(self.confusion, classes, names)
        return drawn

    def _name(self, label: int) -> str:
        return self._names[label] if label < len(self._names) else str(label)


class ClassifiedImage(NamedTuple):
    """One example, with its true and its predicted class."""

    pixels: np.ndarray  # [H, W, C], of any range
    label: int
    predicted: int


class Confusion:
    """Counts of examples, int32 `[N, N]`, by true and by predicted class."""

    def __init__(self, num_classes: int):
        self.counts = np.zeros([num_classes, num_classes], np.int32)

    def add(self, labels: np.ndarray, predicted: np.ndarray) -> None:
        """Counts examples with true classes `[K]` and predicted classes `[K]`."""
        np.add.at(self.counts, (labels, predicted), 1)

    def most_confused(self, max_classes: int) -> np.ndarray:
        """Returns at most `max_classes` classes, of the most confused pairs, sorted."""
        num_classes = len(self.counts)
        if num_classes <= max_classes:
            return np.arange(num_classes)
        both_ways = np.triu(self.counts + self.counts.T, 1)
        pairs = np.argwhere(both_ways)
        order = np.argsort(-both_ways[tuple(pairs.T)], kind="stable")
        chosen: set[int] = set()
        for pair in pairs[order]:
            if len(chosen.union(pair.tolist())) > max_classes:
                break
            chosen.update(pair.tolist())
        return np.array(sorted(chosen), int)

    def shares(self, classes: np.ndarray) -> np.ndarray:
        """Returns the counts of K classes, `[K, K]`, as shares of each true class.

        Shares of a class without examples are 0.
        """
        sizes = np.maximum(self.counts.sum(1), 1)[classes, np.newaxis]
        return self.counts[np.ix_(classes, classes)] / sizes


def draw_images(images: Sequence[ClassifiedImage], name: Callable[[int], str]) -> bytes:
    """Returns a PNG of images, with classes' names, which `name` gives for labels."""
    num_columns = math.ceil(math.sqrt(len(images)))
    num_rows = math.ceil(len(images) / num_columns)
    inches = _INCHES_PER_IMAGE
    figure = _figure(num_columns * inches, num_rows * inches * 1.2)
    panels = figure.subplots(num_rows, num_columns, squeeze=False).ravel()
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
    """Scales an image to [0, 1]: `[H, W, 3]` or, if C is not 3, its mean `[H, W]`."""
    if pixels.shape[-1] != 3:
        pixels = pixels.mean(-1)
    low, high = pixels.min(), pixels.max()
    return (pixels - low) / (high - low if high > low else 1.0)


def draw_confusion(
    confusion: Confusion, classes: np.ndarray, names: Sequence[str]
) -> bytes:
    """Returns a PNG of the matrix of `classes`, int `[K]`. Larger shares are darker."""
    size = len(classes) * _INCHES_PER_CLASS + _INCHES_OF_NAMES
    figure = _figure(size, size)
    panel = figure.subplots()
    shares = confusion.shares(classes)
    panel.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0)
    counts = confusion.counts[np.ix_(classes, classes)]
    centered: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7}
    for (row, column), count in np.ndenumerate(counts):
        if count:
            color = _LIGHT if shares[row, column] > 0.5 else _DARK
            panel.text(column, row, str(count), color=color, **centered)
    labels, ticks = [_short(name) for name in names], range(len(classes))
    style: dict[str, Any] = {"fontsize": 7, "parse_math": False}
    panel.set_xticks(ticks, labels, rotation=90, **style)
    panel.set_yticks(ticks, labels, **style)
    panel.set_xlabel("predicted", color=_DARK)
    panel.set_ylabel("true", color=_DARK)
    if len(classes) < len(confusion.counts):
        title = f"the most confused of {len(confusion.counts)} classes"
        panel.set_title(title, fontsize=9)
    return _png(figure)


def _short(name: str) -> str:
    if len(name) <= _MAX_NAME_LENGTH:
        return name
    return f"{name[: _MAX_NAME_LENGTH - 1]}\N{HORIZONTAL ELLIPSIS}"


def _figure(width: float, height: float) -> Any:
    # Imported here: it takes half a second, and not every evaluation draws.
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=_DPI, layout="constrained")


def _png(figure: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()
