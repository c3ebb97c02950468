"""The examples of some classes, as a data set of their own.

Shapes: K examples of N in a split.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from lingvo_pipe.input.image_faults import read_all
from lingvo_pipe.input.image_source import ImageFormat, ImageSource


class LabelSubset:
    """The examples of a source that have one of some labels; as of ImageSource.

    An example of label `labels[i]` has label i here. To find the examples, the whole
    split is read once.

    Args:
        source: Where they are.
        image_format: What is known of the images.
        labels: The labels to keep, in their new order.

    Raises:
        ValueError: If no example has such a label, or one can't be read.
    """

    def __init__(
        self, source: ImageSource, image_format: ImageFormat, labels: Sequence[int]
    ) -> None:
        self._source = source
        old = _all_labels(source, image_format)
        self._places = np.flatnonzero(np.isin(old, labels))
        if not len(self._places):
            raise ValueError(
                "labels must be those of some examples; none of the split has one of "
                f"{list(labels)}. Name others, or another split."
            )
        self._new = np.zeros(max(labels) + 1, np.int32)
        self._new[list(labels)] = np.arange(len(labels))

    @property
    def num_examples(self) -> int:
        return len(self._places)

    def Fetch(self, indices: tf.Tensor) -> Any:
        return self._source.Fetch(tf.gather(self._places, indices))

    def Read(self, record: Any) -> tuple[tf.Tensor, tf.Tensor]:
        image, label = self._source.Read(record)
        return image, tf.gather(self._new, label)

    def Name(self, index: int) -> str:
        return self._source.Name(int(self._places[index]))


def _all_labels(source: ImageSource, image_format: ImageFormat) -> np.ndarray:
    """Returns the label of every example, int32 [N]."""
    labels = read_all(source, image_format, lambda record: source.Read(record)[1])
    return np.fromiter(labels.as_numpy_iterator(), np.int32, source.num_examples)
