"""The last layer: from hidden states to logits, which may be kept from growing.

A deep model's logits grow until its gradients are no numbers any more; clipping them
beyond a threshold helps (GPipe, 1811.06965, section 5; it does not tell the threshold).

    soft    c·tanh(logit / c): within ±c, with a gradient everywhere
    hard    at most ±c, with no gradient beyond

Shapes: B examples, T tokens, V tokens in the vocabulary, D channels.
"""

from __future__ import annotations

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.forward_cost import elementwise_cost
from lingvo_pipe.layers.input_shape import check_channels
from lingvo_pipe.layers.token_embedding import table_weight
from lingvo_pipe.layers.weight_init import WeightInit
from lingvo_pipe.layers.weight_params import WeightParams
from lingvo_pipe.models.transformer.streams import TARGET, check_stream
from lingvo_pipe.nested_map import NestedMap


class LogitsLayer(BaseLayer):
    """State -> logits `[B, T, V]` of a stream, in float32 or wider.

    Its weight `w` `[V, D]` is like an embedding's table, which it may be tied to.
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Params: which stream, sizes, bias and clipping."""
        p = super().Params()
        p.Define("stream", TARGET, "Which stream: source or target.")
        p.Define("num_tokens", 0, "V.")
        p.Define("model_dim", 0, "D.")
        p.Define("has_bias", False, "Whether each token of the vocabulary has a bias.")
        p.Define("logits_soft_max", None, "c of soft clipping; None: none.")
        p.Define("logits_abs_max", None, "c of hard clipping; None: none.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        p = self.params
        check_stream(p.stream, self.path)
        for name in ("logits_soft_max", "logits_abs_max"):
            if p.Get(name) is not None and not p.Get(name) > 0.0:
                raise ValueError(
                    f"{name} must be positive; {self.path} has {p.Get(name)}. None "
                    "leaves logits as they are."
                )
        self.CreateVariable("w", table_weight(p.num_tokens, p.model_dim))
        if p.has_bias:
            self.CreateVariable(
                "b", WeightParams([p.num_tokens], WeightInit.Constant())
            )

    def FProp(self, theta: NestedMap, state: NestedMap) -> tf.Tensor:
        """Hidden states `[B, T, D]` in the state's stream -> `[B, T, V]`."""
        p = self.params
        hidden = state[p.stream].hidden
        check_channels(hidden, p.model_dim, self.path)
        rows = tf.reshape(tf.cast(hidden, self.fprop_dtype), [-1, p.model_dim])
        logits = tf.matmul(rows, theta.w, transpose_b=True)
        logits = tf.reshape(logits, [-1, hidden.shape[1], p.num_tokens])
        wide = tf.float64 if logits.dtype == tf.float64 else tf.float32
        logits = tf.cast(logits, wide)
        if p.has_bias:
            logits += tf.cast(theta.b, wide)
        if p.logits_soft_max is not None:
            logits = p.logits_soft_max * tf.tanh(logits / p.logits_soft_max)
        if p.logits_abs_max is not None:
            logits = tf.clip_by_value(logits, -p.logits_abs_max, p.logits_abs_max)
        return logits

    @classmethod
    def FPropMeta(cls, p: InstantiableParams, *shapes: NestedMap) -> NestedMap:
        """2·D for each logit; bias 1, clipping 2 each."""
        (state,) = shapes
        clippings = (p.logits_soft_max, p.logits_abs_max)
        logits = (*state[p.stream].hidden[:2], p.num_tokens)
        return elementwise_cost(
            logits,
            2 * p.model_dim + p.has_bias + 2 * sum(c is not None for c in clippings),
        )
