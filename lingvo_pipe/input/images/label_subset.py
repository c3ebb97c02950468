"""A source restricted to the examples of some classes.

Shapes: K examples of N in a split.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.input.images.image_errors import read_all
from lingvo_pipe.input.images.image_source import ImageSource


class LabelSubset:
    """An `ImageSource` of the examples with one of the given labels.

    An example of label `labels[i]` gets label i. The whole split is read once to find
    the examples. Raises ValueError if no example has such a label, or one cannot be
    read.
    """

    def __init__(self, source: ImageSource, labels: Sequence[int]) -> None:
        self._source, self.format = source, source.format
        read = read_all(source, lambda record: source.Read(record)[1])
        old = np.fromiter(read.as_numpy_iterator(), np.int32, source.num_examples)
        self._indices = np.flatnonzero(np.isin(old, labels))
        if not len(self._indices):
            raise UserValueError(
                f"labels: expected labels of some examples, got {list(labels)}, which "
                "no example of the split has. Set others, or another split."
            )
        self.num_examples = len(self._indices)
        self._new = np.zeros(max(labels) + 1, np.int32)
        self._new[list(labels)] = np.arange(len(labels))

    def Fetch(self, indices: tf.Tensor) -> Any:
        return self._source.Fetch(tf.gather(self._indices, indices))

    def Read(self, record: Any) -> tuple[tf.Tensor, tf.Tensor]:
        image, label = self._source.Read(record)
        return image, tf.gather(self._new, label)

    def Name(self, index: int) -> str:
        return self._source.Name(int(self._indices[index]))
