"""Subsets by label: those examples, no others, under new labels."""

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.input.images.image_source import ImageFormat
from lingvo_pipe.input.images.label_subset import LabelSubset
from tests.support.errors import fails


class Labeled:
    """Example i is the number i, of the i-th label."""

    format = ImageFormat((None, None, 3), is_encoded=True, dtype=tf.uint8)

    def __init__(self, labels):
        self.num_examples = len(labels)
        self._labels = tf.constant(labels, tf.int32)

    def Fetch(self, indices):
        return indices

    def Read(self, record):
        return record, tf.gather(self._labels, record)

    def Name(self, index):
        return f"example {index}"


LABELS = np.random.default_rng(0).integers(0, 6, 100).tolist()


@pytest.mark.parametrize("labels", [[0], [3, 5], [5, 3], [4, 0, 2], list(range(6))])
def test_it_is_those_examples_in_order_and_labels_are_places(labels):
    subset = LabelSubset(Labeled(LABELS), labels)
    records = subset.Fetch(tf.range(subset.num_examples, dtype=tf.int64))
    made = [tuple(map(int, subset.Read(record))) for record in records]
    expected = [(i, labels.index(n)) for i, n in enumerate(LABELS) if n in labels]
    assert made == expected


def test_a_label_may_have_no_example_but_not_all():
    assert LabelSubset(Labeled([1, 2, 2]), [9, 2]).num_examples == 2
    with fails(path="input.labels", got=[0, 9]):
        LabelSubset(Labeled([1, 2, 2]), [0, 9])
