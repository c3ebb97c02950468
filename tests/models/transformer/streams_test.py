"""Embeddings of one stream leave the other as it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.layers.embedding import sinusoidal_positions
from lingvo_pipe.models.transformer.streams import StreamEmbeddingLayer
from lingvo_pipe.nested_map import NestedMap
from tests.models.transformer.small_models import NUM_TOKENS, packed, sentences


def embedding(**params: Any) -> Any:
    p = StreamEmbeddingLayer.Params().Set(name="embedding", num_tokens=NUM_TOKENS)
    return p.Set(model_dim=4, **params).Instantiate()


def state() -> NestedMap:
    rows = [sentences([3, 2]), sentences([4])]
    return NestedMap(source=packed(rows, 6), target=packed(rows, 5)).Transform(
        tf.constant
    )


@pytest.mark.parametrize("stream", ["source", "target"])
def test_one_stream_gets_embeddings_and_positions(stream: str) -> None:
    layer, inputs = embedding(stream=stream), state()
    outputs = layer(inputs)
    own = inputs[stream]
    want = 2.0 * layer.vars.embedding.w.numpy()[own.ids]
    want = want + sinusoidal_positions(own.segment_pos, 4)
    np.testing.assert_allclose(outputs[stream].hidden, want, rtol=1e-5)
    new = f"{stream}.hidden"
    assert set(outputs.Keys()) == {*inputs.Keys(), new}
    assert all(outputs.GetItem(k) is x for k, x in inputs.FlattenItems())
