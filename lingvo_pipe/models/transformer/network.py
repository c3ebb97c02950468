"""Transformers as lists of layers for a PipeliningLayer.

    source_embedding  encoder_0 ...  target_embedding  decoder_0 ...  logits
    embedding  layer_0 ...  logits

The target's embedding follows the encoder, so that nothing of the target passes through
the encoder. Norms come first in each part. One more norm ends the encoder and the
decoder. It has no scale and no bias, because the matrices after it can do the same.
"""

from collections.abc import Sequence

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.weights import WeightInit
from lingvo_pipe.models.transformer import streams
from lingvo_pipe.models.transformer.logits import LogitsLayer
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
    """Returns the layers of T(L, H, A) of GPipe (1811.06965, section 5), as params.

    Args:
        num_layers: L, layers of the encoder and of the decoder each.
        hidden_dim: H, channels of the feed-forward parts.
        num_heads: A, heads of `attention_tpl.dim_per_head` channels each, 64 by
            default, for any model_dim.
        num_tokens: tokens in the vocabulary of both languages.
        model_dim: channels of the hidden states.
        dropout_prob: dropout of the embeddings and of the outputs of a layer's parts.
        layer_tpl: params of the layers, without these sizes. If None, `plain_layer`.
        logits_tpl: params of the LogitsLayer, without its sizes. If None, its defaults.
    """
    layer = _sized(layer_tpl or plain_layer(), num_layers, hidden_dim, num_heads)
    layer.Set(model_dim=model_dim, keep_prob=1.0 - dropout_prob)
    embedding = _embedding(num_tokens, model_dim, dropout_prob)
    logits = (logits_tpl or LogitsLayer.Params()).Copy()
    encoder = layer.Copy().Set(stream=streams.SOURCE)
    decoder = layer.Copy().Set(memory=streams.SOURCE, causal=True)
    return [
        embedding.Copy().Set(name="source_embedding", stream=streams.SOURCE),
        *_stack("encoder", encoder, num_layers),
        embedding.Copy().Set(name="target_embedding"),
        *_stack("decoder", decoder, num_layers),
        logits.Set(name="logits", num_tokens=num_tokens, model_dim=model_dim),
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
    """Returns the layers of GPipe's Transformer-L (1811.06965, table 1), as params.

    See `translation_model` for the arguments. There is only a decoder. If `layer_tpl`
    is None, the layers have their default params, with biases and with norms that have
    weights. If `logits_tpl` is None, the logits have a bias.
    """
    layer_tpl = layer_tpl or TransformerLayer.Params()
    layer = _sized(layer_tpl, num_layers, hidden_dim, num_heads)
    layer.Set(model_dim=model_dim, keep_prob=1.0 - dropout_prob, causal=True)
    logits = (logits_tpl or LogitsLayer.Params().Set(has_bias=True)).Copy()
    return [
        _embedding(num_tokens, model_dim, dropout_prob).Set(name="embedding"),
        *_stack("layer", layer, num_layers),
        logits.Set(name="logits", num_tokens=num_tokens, model_dim=model_dim),
    ]


def plain_layer() -> InstantiableParams:
    """Returns params of a layer without biases, as large as GPipe's layers."""
    p = TransformerLayer.Params()
    p.attention_tpl.has_bias = p.feed_forward_tpl.has_bias = False
    p.norm_tpl = streams.plain_norm()
    return p


def tied_embeddings(cell_tpl: Sequence[InstantiableParams]) -> dict[str, str]:
    """Returns the param `tied` that makes embeddings and logits share one table."""
    tables = {streams.StreamEmbeddingLayer: "embedding/w", LogitsLayer: "w"}
    first, *tied_paths = [
        f"{p.name}/{table}"
        for p in cell_tpl
        for kind, table in tables.items()
        if issubclass(p.cls, kind)
    ]
    return dict.fromkeys(tied_paths, first)


def _sized(
    layer_tpl: InstantiableParams, num_layers: int, hidden_dim: int, num_heads: int
) -> InstantiableParams:
    if num_layers < 1:
        raise UserValueError(path="num_layers", expected="at least 1", got=num_layers)
    p = layer_tpl.Copy()
    p.attention_tpl.num_heads = num_heads
    p.feed_forward_tpl.hidden_dim = hidden_dim
    if p.feed_forward_tpl.params_init is None:
        # Scaled down by the number of layers, so that deep models start training
        # (GPipe, section 5, after Fixup, 1901.09321).
        p.feed_forward_tpl.params_init = WeightInit.Xavier(1.0 / num_layers)
    return p


def _stack(name: str, p: InstantiableParams, num_layers: int) -> list:
    layers = [p.Copy().Set(name=f"{name}_{i}") for i in range(num_layers)]
    if p.norm_first and p.final_norm_tpl is None:
        layers[-1].final_norm_tpl = streams.plain_norm()
    return layers


def _embedding(
    num_tokens: int, model_dim: int, dropout_prob: float
) -> InstantiableParams:
    p = streams.StreamEmbeddingLayer.Params().Set(
        stream=streams.TARGET, keep_prob=1.0 - dropout_prob
    )
    return p.Set(num_tokens=num_tokens, model_dim=model_dim)
