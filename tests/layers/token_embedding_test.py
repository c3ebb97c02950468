from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.layers.token_embedding import TokenEmbeddingLayer


def embedding(**params: Any) -> Any:
    p = TokenEmbeddingLayer.Params().Set(name="embedding", num_tokens=200, dim=64)
    return p.Set(**params).Instantiate()


def test_tokens_are_rows_of_the_table_scaled() -> None:
    layer, ids = embedding(), np.array([[3, 0], [199, 3]])
    np.testing.assert_allclose(layer(ids), 8.0 * layer.vars.w.numpy()[ids], rtol=1e-6)


def test_vectors_start_with_variance_1() -> None:
    vectors = embedding()(tf.range(200))
    assert np.std(vectors) == pytest.approx(1.0, abs=0.02)


def test_tokens_that_are_floats_are_refused() -> None:
    with pytest.raises(ValueError, match=r"embedding.*float32.*\(2,\)"):
        embedding()(tf.constant([1.0, 2.0]))
