"""Embeddings of tokens and of positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.layers.embedding import TokenEmbeddingLayer, sinusoidal_positions
from tests.support.errors import fails


def embedding(**params: Any) -> Any:
    p = TokenEmbeddingLayer.Params().Set(name="embedding", num_tokens=200, dim=64)
    return p.Set(**params).Instantiate()


def test_tokens_are_rows_of_the_table_scaled() -> None:
    layer, ids = embedding(), np.array([[3, 0], [199, 3]])
    np.testing.assert_allclose(layer(ids), 8.0 * layer.vars.w.numpy()[ids], rtol=1e-6)


@pytest.mark.parametrize("dtype", [tf.int8, tf.uint8, tf.uint16, tf.uint32, tf.int64])
def test_tokens_are_integers_of_any_width(dtype: tf.DType) -> None:
    layer, ids = embedding(), tf.constant([3, 0, 100])
    np.testing.assert_array_equal(layer(tf.cast(ids, dtype)), layer(ids))


def test_vectors_start_with_variance_1() -> None:
    vectors = embedding()(tf.range(200))
    assert np.std(vectors) == pytest.approx(1.0, abs=0.02)


def test_tokens_that_are_floats_are_refused() -> None:
    with fails(path="embedding", got="float32 (2,)"):
        embedding()(tf.constant([1.0, 2.0]))


def test_channels_are_waves_of_the_papers_lengths() -> None:
    got = sinusoidal_positions(tf.range(50)[tf.newaxis], 6, tf.float64).numpy()[0]
    for pos, i in np.ndindex(50, 3):
        angle = pos / 10000 ** (2 * i / 6)
        want = [np.sin(angle), np.cos(angle)]
        np.testing.assert_allclose(got[pos, 2 * i : 2 * i + 2], want, atol=1e-12)


def test_each_packed_sentence_has_positions_of_its_own() -> None:
    packed = sinusoidal_positions(tf.constant([[0, 1, 2, 0, 1]]), 4)[0]
    np.testing.assert_array_equal(packed[:2], packed[3:])


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(tf.float32, 1e-3), (tf.bfloat16, 0.01)]
)
def test_narrow_numbers_are_rounded_at_the_end(
    dtype: tf.DType, tolerance: float
) -> None:
    positions = tf.constant([[0, 1, 255, 257, 4095]])
    got = sinusoidal_positions(positions, 8, dtype)
    want = sinusoidal_positions(positions, 8, tf.float64)
    assert got.dtype == dtype
    np.testing.assert_allclose(tf.cast(got, tf.float64), want, atol=tolerance)


def test_an_odd_number_of_channels_is_refused() -> None:
    with fails(path="Channels of positions", got=5):
        sinusoidal_positions(tf.zeros([1, 3], tf.int32), 5)
