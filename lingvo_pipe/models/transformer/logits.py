"""Logits of the last layer, which may be clipped, and the loss of each token.

A deep model's logits grow until its gradients overflow; clipping them beyond a
threshold helps (GPipe, 1811.06965, section 5, which does not give the threshold).

    soft    c·tanh(logit / c): within ±c, with a gradient everywhere
    hard    at most ±c, with no gradient beyond

Shapes: B examples, T tokens, V tokens in the vocabulary, D channels.
"""

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.checks import check_channels, check_param
from lingvo_pipe.layers.core.forward_cost import elementwise_cost
from lingvo_pipe.layers.core.weights import WeightInit, WeightParams
from lingvo_pipe.layers.embedding import table_weight
from lingvo_pipe.layers.softmax_cross_entropy import cross_entropies, weighted_means
from lingvo_pipe.models.transformer.streams import TARGET, check_stream
from lingvo_pipe.nested_map import NestedMap


class LogitsLayer(BaseLayer):
    """State -> logits `[B, T, V]`, at least float32; `w` `[V, D]` may be a table."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("stream", TARGET, "The stream: source or target.")
        p.Define("num_tokens", 0, "V.")
        p.Define("model_dim", 0, "D.")
        p.Define("has_bias", False, "True for a bias per token of the vocabulary.")
        p.Define("logits_soft_max", None, "c of soft clipping. If None, no clipping.")
        p.Define("logits_abs_max", None, "c of hard clipping. If None, no clipping.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        p = self.params
        check_stream(self, "stream")
        for name in ("logits_soft_max", "logits_abs_max"):
            expected = "None or a number above 0"
            check_param(self, name, lambda x: x is None or x > 0.0, expected)
        self.CreateVariable("w", table_weight(p.num_tokens, p.model_dim))
        if p.has_bias:
            bias = WeightParams([p.num_tokens], WeightInit.Constant(0.0))
            self.CreateVariable("b", bias)

    def FProp(self, theta: NestedMap, state: NestedMap) -> tf.Tensor:
        """Maps the stream's hidden states `[B, T, D]` to `[B, T, V]`."""
        p = self.params
        hidden = state[p.stream].hidden
        check_channels(hidden, p.model_dim, self._path)
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
        """Counts 2·D per logit, 1 for the bias and 2 for each clipping."""
        (state,) = shapes
        clippings = (p.logits_soft_max is not None) + (p.logits_abs_max is not None)
        logits = (*state[p.stream].hidden[:2], p.num_tokens)
        return elementwise_cost(logits, 2 * p.model_dim + p.has_bias + 2 * clippings)


def token_metrics(
    logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, label_smoothing: float = 0
) -> NestedMap:
    """Returns weighted means over all tokens, in float32 or wider.

    Like `softmax_cross_entropy` for logits `[B, T, V]`, labels and weights `[B, T]`:
    pairs (mean, total weight) `loss`, with smoothed labels; `log_pplx`, the cross
    entropy without smoothing, in nats; and `accuracy`.
    """
    log_pplx = cross_entropies(logits, labels)
    logits = tf.cast(logits, log_pplx.dtype)
    weights = tf.cast(weights, log_pplx.dtype)
    losses = log_pplx
    if label_smoothing:
        # The cross entropies of label and mean differ only by their logits.
        of_label = tf.gather(logits, labels, batch_dims=2)
        losses += label_smoothing * (of_label - tf.reduce_mean(logits, -1))
    correct = tf.equal(tf.argmax(logits, -1), tf.cast(labels, tf.int64))
    accuracy = tf.cast(correct, log_pplx.dtype)
    return weighted_means(weights, loss=losses, log_pplx=log_pplx, accuracy=accuracy)
