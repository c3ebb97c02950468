"""Transformers as lists of layers for a PipeliningLayer.

    source_embedding  encoder_0 ...  target_embedding  decoder_0 ...  logits
    embedding  layer_0 ...  logits

The target's embedding stands behind the encoder, so that nothing of the target passes
through it.

Norms come first in each part, and one more ends the encoder and the decoder. That one
has no scale and no bias: the matrices behind it can be what they would be.
"""

from __future__ import annotations

from collections.abc import Sequence

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.layer_norm import LayerNormLayer
from lingvo_pipe.layers.weight_init import WeightInit
from lingvo_pipe.models.transformer.logits import LogitsLayer
from lingvo_pipe.models.transformer.stream_embedding import StreamEmbeddingLayer
from lingvo_pipe.models.transformer.streams import SOURCE, TARGET
from lingvo_pipe.models.transformer.transformer_layer import TransformerLayer


def translation_model(
    num_layers: int,
    hidden_dim: int,
    num_heads: int,
    num_tokens: int,
    model_dim: int = 1024,
    dropout_prob: float = 0.1,
    layer_tpl: InstantiableParams | None = None,
    logits_tpl: InstantiableParams | None = None,
) -> list[InstantiableParams]:
    """T(L, H, A) of GPipe (1811.06965, section 5), an encoder and a decoder.

    Args:
        num_layers: L, of the encoder and of the decoder each.
        hidden_dim: H, channels of the feed-forward parts.
        num_heads: A, of `attention_tpl.dim_per_head` channels each, 64 by default,
            whatever model_dim is.
        num_tokens: of the vocabulary of both languages.
        model_dim: channels of the hidden states.
        dropout_prob: of the embeddings and of what each part of a layer makes.
        layer_tpl: params of the layers but for what is above; None: those of
            `plain_layer`.
        logits_tpl: params of the LogitsLayer but for its sizes; None: its defaults.

    Raises:
        ValueError: if there are no layers.
    """
    layer = _sized(
        layer_tpl or plain_layer(),
        num_layers,
        hidden_dim,
        num_heads,
        model_dim,
        dropout_prob,
    )
    embedding = _embedding(num_tokens, model_dim, dropout_prob)
    encoder = layer.Copy().Set(stream=SOURCE)
    decoder = layer.Copy().Set(memory=SOURCE, causal=True)
    return [
        embedding.Copy().Set(name="source_embedding", stream=SOURCE),
        *_stack("encoder", encoder, num_layers),
        embedding.Copy().Set(name="target_embedding"),
        *_stack("decoder", decoder, num_layers),
        _logits(logits_tpl or LogitsLayer.Params(), num_tokens, model_dim),
    ]


def language_model(
    num_layers: int,
    hidden_dim: int = 8192,
    num_heads: int = 32,
    num_tokens: int = 32_000,
    model_dim: int = 2048,
    dropout_prob: float = 0.1,
    layer_tpl: InstantiableParams | None = None,
    logits_tpl: InstantiableParams | None = None,
) -> list[InstantiableParams]:
    """Transformer-L of GPipe (1811.06965, table 1), a decoder without an encoder.

    Args:
        num_layers: L.
        hidden_dim: see `translation_model`.
        num_heads: likewise.
        num_tokens: of the vocabulary.
        model_dim: see `translation_model`.
        dropout_prob: likewise.
        layer_tpl: params of the layers but for what is above; None: their defaults,
            with biases and weights of the norms.
        logits_tpl: params of the LogitsLayer but for its sizes; None: with a bias.

    Raises:
        ValueError: if there are no layers.
    """
    layer = _sized(
        layer_tpl or TransformerLayer.Params(),
        num_layers,
        hidden_dim,
        num_heads,
        model_dim,
        dropout_prob,
    )
    logits = logits_tpl or LogitsLayer.Params().Set(has_bias=True)
    return [
        _embedding(num_tokens, model_dim, dropout_prob).Set(name="embedding"),
        *_stack("layer", layer.Set(causal=True), num_layers),
        _logits(logits, num_tokens, model_dim),
    ]


def plain_layer() -> InstantiableParams:
    """Params of a TransformerLayer whose weights are matrices: no biases, plain norms.

    So the models of GPipe's section 5 have as many parameters as are published.
    """
    p = TransformerLayer.Params()
    p.attention_tpl.has_bias = p.feed_forward_tpl.has_bias = False
    p.norm_tpl = _plain_norm()
    return p


def tied_embeddings(cell_tpl: Sequence[InstantiableParams]) -> dict[str, str]:
    """For a pipeline's `tied`: one table for all embeddings and the logits.

    Args:
        cell_tpl: as of `translation_model` or `language_model`.
    """
    tables = {StreamEmbeddingLayer: "embedding/w", LogitsLayer: "w"}
    first, *others = [f"{p.name}/{tables[p.cls]}" for p in cell_tpl if p.cls in tables]
    return dict.fromkeys(others, first)


def _sized(
    layer_tpl: InstantiableParams,
    num_layers: int,
    hidden_dim: int,
    num_heads: int,
    model_dim: int,
    dropout_prob: float,
) -> InstantiableParams:
    if num_layers < 1:
        raise ValueError(f"num_layers must be at least 1; got {num_layers}.")
    p = layer_tpl.Copy().Set(model_dim=model_dim, keep_prob=1.0 - dropout_prob)
    p.attention_tpl.num_heads = num_heads
    p.feed_forward_tpl.hidden_dim = hidden_dim
    if p.feed_forward_tpl.params_init is None:
        # Scaled down by the number of layers, so that deep models start to train
        # (GPipe, section 5, after Fixup, 1901.09321).
        p.feed_forward_tpl.params_init = WeightInit.Xavier(1.0 / num_layers)
    return p


def _stack(name: str, p: InstantiableParams, num_layers: int) -> list:
    layers = [p.Copy().Set(name=f"{name}_{i}") for i in range(num_layers)]
    if p.norm_first and p.final_norm_tpl is None:
        layers[-1].final_norm_tpl = _plain_norm()
    return layers


def _plain_norm() -> InstantiableParams:
    return LayerNormLayer.Params().Set(has_scale=False, has_bias=False)


def _embedding(
    num_tokens: int, model_dim: int, dropout_prob: float
) -> InstantiableParams:
    return StreamEmbeddingLayer.Params().Set(
        stream=TARGET,
        num_tokens=num_tokens,
        model_dim=model_dim,
        keep_prob=1.0 - dropout_prob,
    )


def _logits(
    p: InstantiableParams, num_tokens: int, model_dim: int
) -> InstantiableParams:
    return p.Copy().Set(name="logits", num_tokens=num_tokens, model_dim=model_dim)
