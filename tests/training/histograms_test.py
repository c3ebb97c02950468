"""Histograms: as those of NumPy, and whatever the numbers are."""

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.training.histograms import buckets
from lingvo_pipe.training.metrics_log import MetricsLog, read_metrics

NORMAL = np.random.default_rng(0).normal(size=[40, 25]).astype(np.float32)


@pytest.mark.parametrize(
    "values",
    [NORMAL, NORMAL.astype(np.float64), np.arange(31), [-1.0, 1.0], [1, 2, 2, 2, 9]],
)
def test_as_numpy_counts(values):
    counts, edges = np.histogram(np.asarray(values, np.float64), bins=30)
    got = buckets(values)
    np.testing.assert_allclose(got[:, 0], edges[:-1], atol=1e-12)
    np.testing.assert_allclose(got[:, 1], edges[1:], atol=1e-12)
    np.testing.assert_array_equal(got[:, 2], counts)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32, tf.float64])
def test_each_number_is_in_its_bucket(dtype):
    values = tf.cast(NORMAL, dtype).numpy()
    numbers = values.astype(np.float64).ravel()
    got = buckets(values)
    assert got.dtype == np.float64
    for i, (left, right, count) in enumerate(got):
        below = numbers <= right if i == len(got) - 1 else numbers < right
        assert count == np.sum((numbers >= left) & below)
    assert got[:, 2].sum() == NORMAL.size


def test_what_is_not_finite_is_in_no_bucket():
    values = np.concatenate([NORMAL.ravel(), [np.nan, np.inf, -np.inf]])
    np.testing.assert_array_equal(buckets(values), buckets(NORMAL))


@pytest.mark.parametrize("value", [0.0, -3.5, 1e30, 1e-40])
def test_equal_numbers_are_one_bucket(value):
    np.testing.assert_array_equal(buckets(np.full([2, 3], value)), [[value, value, 6]])


@pytest.mark.parametrize("values", [[], np.zeros([3, 0]), [np.nan, np.nan]])
def test_no_numbers_are_no_buckets(values):
    assert buckets(values).shape == (0, 3)


def test_numbers_that_hardly_differ_are_counted():
    values = [1.0, np.nextafter(1.0, 2)]
    got = buckets(values)
    assert (got[0, 0], got[-1, 1], got[:, 2].sum()) == (*values, 2)


def test_tensorboard_gets_them(tmp_path):
    """Of the shape that its histogram plugin reads."""
    with MetricsLog(tmp_path) as log:
        log.write_histograms(7, "train", {"a/w": NORMAL, "a/b": np.zeros([0])})
    (events,) = (tmp_path / "train").iterdir()
    values = {
        value.tag: (
            event.step,
            value.metadata.plugin_data.plugin_name,
            tf.make_ndarray(value.tensor),
        )
        for event in tf.compat.v1.train.summary_iterator(str(events))
        for value in event.summary.value
    }
    assert set(values) == {"a/w", "a/b"}
    assert {x[:2] for x in values.values()} == {(7, "histograms")}
    np.testing.assert_array_equal(values["a/w"][2], buckets(NORMAL))
    assert values["a/b"][2].shape == (0, 3)
    assert values["a/b"][2].dtype == np.float64
    assert read_metrics(tmp_path) == []
