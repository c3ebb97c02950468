"""Heads of blocks of a Transformer's layers that are trained each by its own loss.

    language model, decoder   norm -> logits
    encoder                   norm of the source -> target's embedding -> decoder layer
                              -> logits

A norm, for where norms come first only the last layer of a stack ends with one.

Shapes: B examples, T target tokens, V tokens in the vocabulary, D channels.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.layer_norm import LayerNormLayer
from lingvo_pipe.layers.sequential import SequentialLayer
from lingvo_pipe.models.transformer.logits import LogitsLayer
from lingvo_pipe.models.transformer.stream_embedding import StreamEmbeddingLayer
from lingvo_pipe.models.transformer.stream_norm import StreamNormLayer
from lingvo_pipe.models.transformer.streams import SOURCE, TARGET, has_hidden
from lingvo_pipe.models.transformer.transformer_layer import TransformerLayer
from lingvo_pipe.nested_map import NestedMap


def reads_source(cell: InstantiableParams) -> bool:
    """Whether the target sees the source in a cell of these params."""
    return (
        cell.cls is TransformerLayer and cell.stream == TARGET and cell.memory == SOURCE
    )


def logits_head(
    cells: Sequence[InstantiableParams], state: NestedMap, logits: tf.TensorSpec
) -> InstantiableParams:
    """Params: state with hidden states of the target -> logits `[B, T, V]`.

    Args:
        cells: params of the model's cells: if the last are its logits, so are these, of
            a table of their own.
        state: specs of what the last cell before hands on.
        logits: spec of the model's outputs.
    """
    dim = state.target.hidden.shape[-1]
    return SequentialLayer.Params().Set(
        sub=[_norm(TARGET, dim), _logits(cells, dim, logits.shape[-1])]
    )


def decoder_head(
    cells: Sequence[InstantiableParams], state: NestedMap, logits: tf.TensorSpec
) -> InstantiableParams:
    """Params: state with hidden states of the source alone -> logits `[B, T, V]`.

    The decoder's layer is as the model's first, but its feed-forward part is as narrow
    as the hidden states. It has a target's embedding before it, unless the state has
    hidden states of the target.

    Args:
        cells: params of the model's cells, one of which `reads_source`.
        state: see `logits_head`.
        logits: likewise.
    """
    dim, num_tokens = state.source.hidden.shape[-1], logits.shape[-1]
    layer = next(filter(reads_source, cells)).Copy()
    layer.Set(name="", final_norm_tpl=_plain_norm(dim))
    layer.feed_forward_tpl.hidden_dim = dim
    embedding = StreamEmbeddingLayer.Params().Set(
        stream=TARGET,
        num_tokens=num_tokens,
        model_dim=dim,
        keep_prob=layer.keep_prob,
    )
    return SequentialLayer.Params().Set(
        sub=[
            _norm(SOURCE, dim),
            *([] if has_hidden(state, TARGET) else [embedding]),
            layer,
            _logits(cells, dim, num_tokens),
        ]
    )


def _norm(stream: str, dim: int) -> InstantiableParams:
    return StreamNormLayer.Params().Set(stream=stream, norm_tpl=_plain_norm(dim))


def _plain_norm(dim: int) -> InstantiableParams:
    return LayerNormLayer.Params().Set(dim=dim, has_scale=False, has_bias=False)


def _logits(
    cells: Sequence[InstantiableParams], dim: int, num_tokens: int
) -> InstantiableParams:
    last = cells[-1]
    p = last.Copy() if last.cls is LogitsLayer else LogitsLayer.Params()
    return p.Set(name="", num_tokens=num_tokens, model_dim=dim)
