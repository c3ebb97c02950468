"""A source of images that has only the examples of some classes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.input.images.image_errors import read_all
from lingvo_pipe.input.images.image_source import ImageSource


class LabelSubset:
    """An `ImageSource` of the examples whose label is in `labels`.

    An example with the label `labels[i]` gets the label i. The constructor reads the
    whole split to find these examples. It raises ValueError if there are none, or if an
    example cannot be read.
    """

    def __init__(self, source: ImageSource, labels: Sequence[int]) -> None:
        self._source, self.format = source, source.format
        read = read_all(source, lambda record: source.Read(record)[1])
        old = np.fromiter(read.as_numpy_iterator(), np.int32, source.num_examples)
        self._indices = np.flatnonzero(np.isin(old, labels))
        if not len(self._indices):
            expected = "labels that some examples of the split have"
            raise UserValueError(path="input.labels", expected=expected, got=labels)
        self.num_examples = len(self._indices)
        self._new = np.zeros(max(labels) + 1, np.int32)
        self._new[list(labels)] = np.arange(len(labels))
        self.labels = self._new[old[self._indices]]

    def Fetch(self, indices: tf.Tensor) -> Any:
        return self._source.Fetch(tf.gather(self._indices, indices))

    def Read(self, record: Any) -> tuple[tf.Tensor, tf.Tensor]:
        image, label = self._source.Read(record)
        return image, tf.gather(self._new, label)

    def Name(self, index: int) -> str:
        return self._source.Name(int(self._indices[index]))
