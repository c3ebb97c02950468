from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.micro_batches import merge, micro_batch_size, split


def test_split_then_merge_is_the_identity() -> None:
    batch = (tf.reshape(tf.range(24), [6, 2, 2]), None, NestedMap(a=tf.range(6)))
    parts = split(batch, 3)
    assert parts[0].shape == [3, 2, 2, 2]
    assert parts[1] is None
    np.testing.assert_array_equal(parts[2].a, [[0, 1], [2, 3], [4, 5]])
    merged = merge(parts)
    np.testing.assert_array_equal(merged[0], batch[0])
    np.testing.assert_array_equal(merged[2].a, batch[2].a)


def test_size_is_the_mini_batch_over_m() -> None:
    assert micro_batch_size([tf.zeros([8, 3]), None], 4, None, "pipe") == 2
    assert micro_batch_size([tf.zeros([8, 3])], 4, 2, "pipe") == 2


@pytest.mark.parametrize(
    ("batch", "wanted", "words"),
    [
        ([tf.TensorSpec([None, 2])], None, "same, known number of examples"),
        ([tf.TensorSpec([4]), tf.TensorSpec([2])], None, r"shapes \(4,\), \(2,\)"),
        ([tf.TensorSpec([])], None, "same, known number of examples"),
        ([tf.TensorSpec([5, 1])], None, "given 5 examples for 2 micro-batches"),
        ([tf.TensorSpec([0, 1])], None, "given 0 examples for 2 micro-batches"),
        ([tf.TensorSpec([4])], 3, "pipe has 3 x 2, and was given 4 examples"),
    ],
)
def test_what_can_not_be_cut_is_refused(
    batch: list[Any], wanted: int | None, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        micro_batch_size(batch, 2, wanted, "pipe")
