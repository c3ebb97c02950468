"""Heads of a Transformer's blocks. Each head trains its block by a loss of its own.

    language model, decoder   norm -> logits
    encoder                   norm of the source -> target's embedding -> decoder layer
                              -> logits

A head starts with a norm, because in a stack with norms first only the last layer ends
with a norm.

Shapes: B examples, T target tokens, V tokens in the vocabulary, D channels.
"""

from collections.abc import Sequence

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.sequential import SequentialLayer
from lingvo_pipe.models.transformer.logits import LogitsLayer
from lingvo_pipe.models.transformer.streams import (
    SOURCE,
    TARGET,
    StreamEmbeddingLayer,
    StreamNormLayer,
    has_hidden,
    plain_norm,
)
from lingvo_pipe.models.transformer.transformer_layer import TransformerLayer
from lingvo_pipe.nested_map import NestedMap


def reads_source(cell: InstantiableParams) -> bool:
    """Returns whether these are params of a cell whose target attends to the source."""
    return (
        cell.cls is TransformerLayer and cell.stream == TARGET and cell.memory == SOURCE
    )


def logits_head(
    cells: Sequence[InstantiableParams], state: NestedMap, logits: tf.TensorSpec
) -> InstantiableParams:
    """Returns params of a head: hidden states of the target -> logits `[B, T, V]`.

    If the model's last cell is a LogitsLayer, the head's LogitsLayer has the same
    params but its own table. `state` has specs of the outputs of the last cell before
    the head. `logits` is the spec of the model's outputs.
    """
    dim = state.target.hidden.shape[-1]
    sub = [_norm(TARGET, dim), _logits(cells, dim, logits.shape[-1])]
    return SequentialLayer.Params().Set(sub=sub)


def decoder_head(
    cells: Sequence[InstantiableParams], state: NestedMap, logits: tf.TensorSpec
) -> InstantiableParams:
    """Returns params of a head: hidden states of the source -> logits `[B, T, V]`.

    The head's decoder layer is like the model's first decoder layer, but its
    feed-forward part is as narrow as the hidden states. An embedding of the target
    precedes the decoder layer, unless the state has hidden states of the target. At
    least one cell must satisfy `reads_source`. See `logits_head` for `state` and
    `logits`.
    """
    dim, num_tokens = state.source.hidden.shape[-1], logits.shape[-1]
    layer = next(filter(reads_source, cells)).Copy()
    layer.Set(name="", final_norm_tpl=plain_norm(dim))
    layer.feed_forward_tpl.hidden_dim = dim
    sub = [_norm(SOURCE, dim), layer, _logits(cells, dim, num_tokens)]
    if not has_hidden(state, TARGET):
        embedding = StreamEmbeddingLayer.Params().Set(stream=TARGET, model_dim=dim)
        sub.insert(1, embedding.Set(num_tokens=num_tokens, keep_prob=layer.keep_prob))
    return SequentialLayer.Params().Set(sub=sub)


def _norm(stream: str, dim: int) -> InstantiableParams:
    return StreamNormLayer.Params().Set(stream=stream, norm_tpl=plain_norm(dim))


def _logits(
    cells: Sequence[InstantiableParams], dim: int, num_tokens: int
) -> InstantiableParams:
    last = cells[-1]
    p = last.Copy() if issubclass(last.cls, LogitsLayer) else LogitsLayer.Params()
    return p.Set(name="", num_tokens=num_tokens, model_dim=dim)
