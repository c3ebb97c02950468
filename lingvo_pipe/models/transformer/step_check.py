"""A check that a layer computes the same token by token as for all tokens at once.

Training runs FProp, and decoding runs `ExtendStep` or FProp for one token. For this
library's layers, the results agree. A user's class, such as a subclass with another
FProp or a feed-forward part that mixes tokens, is tried on a few tokens.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.layers.attention import MultiHeadAttentionLayer
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.dense import FCLayer, FeedForwardLayer
from lingvo_pipe.layers.dropout import DropoutLayer
from lingvo_pipe.layers.embedding import TokenEmbeddingLayer
from lingvo_pipe.layers.layer_norm import LayerNormLayer
from lingvo_pipe.layers.residual import ResidualLayer
from lingvo_pipe.models.transformer.logits import LogitsLayer
from lingvo_pipe.models.transformer.streams import TARGET, StreamEmbeddingLayer
from lingvo_pipe.models.transformer.transformer_layer import TransformerLayer
from lingvo_pipe.nested_map import NestedMap

_KNOWN: set[type] = {
    StreamEmbeddingLayer,
    TokenEmbeddingLayer,
    TransformerLayer,
    ResidualLayer,
    MultiHeadAttentionLayer,
    FeedForwardLayer,
    FCLayer,
    LayerNormLayer,
    DropoutLayer,
    LogitsLayer,
}
_NUM_TOKENS = 3
# Fractions of the largest output: rounding is far below, and mixing of tokens above.
_TOLERANCE, _TOLERANCE_OF_16_BITS = 1e-3, 0.02


def check_steps(layer: BaseLayer) -> None:
    """Compares a layer's outputs for three tokens at once and one by one, if it must.

    Raises:
        ValueError: if the outputs differ, or the layer has no steps.
    """
    kinds = {type(x) for x in layer.Descendants()} - _KNOWN
    if isinstance(layer, TransformerLayer) and not kinds:
        kinds = {type(layer.feed_forward.body)} - {FeedForwardLayer}
    if not kinds:
        return
    try:
        with tf.init_scope(), ForwardContext(do_eval=True):
            at_once, one_by_one = _outputs(layer)
    except AttributeError as error:
        raise _refusal(layer, kinds, str(error)) from error
    is_short = layer.fprop_dtype.size == 2
    tolerance = _TOLERANCE_OF_16_BITS if is_short else _TOLERANCE
    limit = tolerance * np.nanmax(np.abs(at_once), initial=0.0)
    if not np.allclose(one_by_one, at_once, rtol=0.0, atol=limit, equal_nan=True):
        raise _refusal(layer, kinds, "other outputs than FProp's for all tokens")


def _outputs(layer: BaseLayer) -> list[np.ndarray]:
    theta, state = layer.theta, _random_state(layer)
    has_states, outputs = isinstance(layer, TransformerLayer), []
    states = layer.InitStates(theta, state, 1, _NUM_TOKENS) if has_states else None
    for t in range(_NUM_TOKENS):
        token = state[TARGET].Transform(lambda x, t=t: x[:, t : t + 1])
        if has_states:
            output, states = layer.ExtendStep(
                theta, NestedMap(target=token), states, tf.constant(t)
            )
        else:
            output = layer.FProp(theta, NestedMap(target=token))
        outputs.append(_values(output))
    return [_values(layer.FProp(theta, state)), np.concatenate(outputs, 1)]


def _random_state(layer: BaseLayer) -> NestedMap:
    positions = tf.range(_NUM_TOKENS)[tf.newaxis]

    def stream(seed: int) -> NestedMap:
        shape = [1, _NUM_TOKENS, layer.params.model_dim]
        hidden = tf.random.stateless_normal(shape, [seed, seed])
        return NestedMap(
            ids=positions % 2,
            segment_ids=tf.ones_like(positions),
            segment_pos=positions,
            hidden=tf.cast(hidden, layer.fprop_dtype),
        )

    return NestedMap(source=stream(1), target=stream(2))


def _values(outputs: Any) -> np.ndarray:
    hidden = outputs if tf.is_tensor(outputs) else outputs[TARGET].hidden
    return tf.cast(hidden, tf.float64).numpy()


def _refusal(layer: BaseLayer, kinds: set[type], got: str) -> UserValueError:
    names = ", ".join(sorted(kind.__name__ for kind in kinds))
    return UserValueError(
        path=layer.path,
        expected="a layer that computes the same token by token, for decoding",
        got=Words(got),
        hint=f"{names}: layers must not mix tokens, except in attention. Where FProp "
        "is another than this library's, ExtendStep must compute the same.",
    )
