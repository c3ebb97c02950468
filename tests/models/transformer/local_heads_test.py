"""Parts and sizes of the heads of a Transformer's blocks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.models.transformer.logits import LogitsLayer
from lingvo_pipe.models.transformer.streams import StreamEmbeddingLayer, StreamNormLayer
from lingvo_pipe.models.transformer.transformer_layer import TransformerLayer
from lingvo_pipe.nested_map import NestedMap
from tests.models.transformer.small_models import (
    MODEL_DIM,
    NUM_TOKENS,
    language_model_task,
    translation_task,
)
from tests.support.errors import fails

LOGITS = tf.TensorSpec([2, 5, NUM_TOKENS])
DECODER = [StreamNormLayer, TransformerLayer, LogitsLayer]


def _state(**has_hidden: bool) -> NestedMap:
    """Returns specs of streams, with hidden states or without."""
    ids, hidden = tf.TensorSpec([2, 5], tf.int32), tf.TensorSpec([2, 5, MODEL_DIM])
    return NestedMap(
        {
            stream: NestedMap(ids=ids, hidden=hidden) if has else NestedMap(ids=ids)
            for stream, has in has_hidden.items()
        }
    )


def _head(p: InstantiableParams, last: str, state: NestedMap) -> InstantiableParams:
    names = [cell.name for cell in p.pipeline.cell_tpl]
    return p.cls.LocalHead(p, names.index(last) + 1, state, LOGITS)


@pytest.mark.parametrize(
    ("last", "has_target", "parts"),
    [
        ("source_embedding", False, [DECODER[0], StreamEmbeddingLayer, *DECODER[1:]]),
        ("encoder_1", False, [DECODER[0], StreamEmbeddingLayer, *DECODER[1:]]),
        ("target_embedding", True, DECODER),
        ("decoder_0", True, [StreamNormLayer, LogitsLayer]),
    ],
)
def test_the_source_is_read_by_the_head_until_the_decoder_reads_it(
    last: str, has_target: bool, parts: list[type]
) -> None:
    p = translation_task()
    head = _head(p, last, _state(source=True, target=has_target))
    assert [part.cls for part in head.sub] == parts
    assert head.sub[0].stream == ("target" if last == "decoder_0" else "source")
    assert head.sub[-1] == p.pipeline.cell_tpl[-1].Copy().Set(name="")
    for part in head.sub:
        if part.cls is TransformerLayer:
            assert (part.stream, part.memory, part.causal) == ("target", "source", True)
            assert part.feed_forward_tpl.hidden_dim == MODEL_DIM


def test_a_language_model_is_normed_and_projected() -> None:
    head = _head(language_model_task(), "layer_0", _state(target=True))
    assert [part.cls for part in head.sub] == [StreamNormLayer, LogitsLayer]
    layer = head.Set(name="head").Instantiate()
    hidden = tf.random.stateless_normal([2, 5, MODEL_DIM], [0, 1])
    found, scaled = (
        layer(NestedMap(target=NestedMap(hidden=scale * hidden))) for scale in (1, 9)
    )
    assert found.shape == LOGITS.shape
    np.testing.assert_allclose(found, scaled, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("make", [language_model_task, translation_task])
def test_streams_without_hidden_states_have_no_head(
    make: Callable[[], InstantiableParams],
) -> None:
    p = make()
    state = _state(source=False, target=False)
    with fails(path="task.local.head", got=None):
        p.cls.LocalHead(p, 1, state, LOGITS)
