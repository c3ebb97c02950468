from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.execution.micro_batches import MicroBatches, cut_batch
from tests.support.errors import fails


@pytest.mark.parametrize("batch_dim", [0, 1])
@pytest.mark.parametrize(("batch_size", "num"), [(6, 3), (6, 1), (7, 3), (30, 4)])
def test_split_then_merge_is_the_identity(
    batch_size: int, num: int, batch_dim: int
) -> None:
    shape = [5, 2]
    shape.insert(batch_dim, batch_size)
    x = tf.reshape(tf.range(np.prod(shape)), shape)
    batch = (x, None, NestedMap(a=tf.range(batch_size)))
    cut = MicroBatches(batch_size, num, batch_dim)
    split = cut.split(batch)
    shape[batch_dim] = cut.num_rows
    assert split[0].shape == [num, *shape]
    assert split[1] is None
    merged = cut.merge(split, "pipe")
    np.testing.assert_array_equal(merged[0], batch[0])
    np.testing.assert_array_equal(merged[2].a, batch[2].a)


@pytest.mark.parametrize("batch_dim", [0, 1])
@pytest.mark.parametrize("batch_size", [6, 7])
@pytest.mark.parametrize(("shape", "got"), [([], "a[1] ()"), ([2, 2], "a[1] (2, 2)")])
def test_outputs_without_a_row_for_each_example_are_not_merged(
    shape: list[int], got: str, batch_size: int, batch_dim: int
) -> None:
    cut = MicroBatches(batch_size, 2, batch_dim)
    rows = tf.zeros([2, cut.num_rows])
    with fails(path="pipe", got=got):
        cut.merge(NestedMap(a=[rows, tf.zeros([2, *shape])]), "pipe")


def test_padding_rows_are_copies_of_examples() -> None:
    cut = MicroBatches(10, 4)
    rows = cut.split(tf.range(10)).numpy()
    np.testing.assert_array_equal(rows, [[0, 1, 2], [3, 4, 5], [6, 7, 7], [8, 9, 9]])
    np.testing.assert_array_equal(cut.num_examples, [3, 3, 2, 2])
    np.testing.assert_array_equal(cut.first_examples, [0, 3, 6, 8])


def test_rows_are_the_mini_batch_over_m() -> None:
    assert cut_batch([tf.zeros([8, 3]), None], 4, None, 0, "pipe").num_rows == 2
    assert cut_batch([tf.zeros([8, 3])], 4, 2, 0, "pipe").num_rows == 2
    assert cut_batch([tf.zeros([3, 8])], 3, 3, 1, "pipe").num_rows == 3


@pytest.mark.parametrize(
    ("shapes", "options", "path", "got"),
    [
        ([[None, 2]], {}, "pipe", "float32 (None, 2)"),
        ([[4], [2]], {}, "pipe", "float32 (4,), float32 (2,)"),
        ([[]], {}, "pipe", "float32 ()"),
        ([], {}, "pipe", "none"),
        ([[4, None]], {}, "pipe", "float32 (4, None)"),
        ([[1, 1]], {}, "pipe.num_micro_batches", 2),
        ([[0, 1]], {}, "pipe.num_micro_batches", 2),
        ([[4]], {"num_rows": 3}, "pipe.micro_batch_size", 3),
        # Once the last dimension replaced it.
        ([[8, 3], [8]], {"batch_dim": 2}, "pipe.batch_dim", 2),
    ],
)
def test_batches_that_can_not_be_cut_are_refused(
    shapes: list[Any], options: dict[str, int], path: str, got: Any
) -> None:
    batch = [*map(tf.TensorSpec, shapes), None]
    num_rows, batch_dim = options.get("num_rows"), options.get("batch_dim", 0)
    with fails(path=path, got=got):
        cut_batch(batch, 2, num_rows, batch_dim, "pipe")
