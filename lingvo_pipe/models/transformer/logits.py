"""Logits of the last layer, which may be clipped, and the loss of each token.

A deep model's logits grow until its gradients overflow. Clipping logits beyond a
threshold helps (GPipe, 1811.06965, section 5, which does not give the threshold).

    soft    c·tanh(logit / c): within ±c, with a gradient everywhere
    hard    at most ±c, with no gradient beyond

Shapes: B examples, T tokens, V tokens in the vocabulary, D channels.
"""

from typing import ClassVar

import tensorflow as tf

from lingvo_pipe.core.nests import as_indices, wide_dtype
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.checks import check_channels, check_param
from lingvo_pipe.layers.core.forward_context import current_context
from lingvo_pipe.layers.core.weights import WeightInit, WeightParams
from lingvo_pipe.layers.embedding import table_weight
from lingvo_pipe.layers.slice_layers import SliceLayer
from lingvo_pipe.layers.softmax_cross_entropy import cross_entropies, weighted_means
from lingvo_pipe.models.transformer.streams import TARGET, check_stream
from lingvo_pipe.nested_map import NestedMap


class LogitsLayer(BaseLayer):
    """A layer that maps hidden states to logits `[B, T, V]`, in float32 or wider.

    Its weight `w` `[V, D]` is like an embedding's table, and may be tied to a table.
    """

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

    @classmethod
    def SliceClass(cls, p: InstantiableParams) -> type[SliceLayer]:
        """Returns the class of the slices. Each slice has the logits of some tokens."""
        return _LogitsSlice

    def FProp(self, theta: NestedMap, state: NestedMap) -> tf.Tensor:
        """Maps the stream's hidden states `[B, T, D]` to `[B, T, V]`.

        Logits of tokens beyond the context's `vocabulary_size` are -inf.
        """
        p = self.params
        hidden = state[p.stream].hidden
        check_channels(hidden, p.model_dim, self._path)
        rows = tf.reshape(tf.cast(hidden, self.fprop_dtype), [-1, p.model_dim])
        logits = tf.matmul(rows, theta.w, transpose_b=True)
        logits = tf.reshape(logits, [-1, hidden.shape[1], p.num_tokens])
        wide = wide_dtype(logits.dtype)
        logits = tf.cast(logits, wide)
        if p.has_bias:
            logits += tf.cast(theta.b, wide)
        if p.logits_soft_max is not None:
            logits = p.logits_soft_max * tf.tanh(logits / p.logits_soft_max)
        if p.logits_abs_max is not None:
            logits = tf.clip_by_value(logits, -p.logits_abs_max, p.logits_abs_max)
        size = current_context().vocabulary_size
        if size is not None and size < p.num_tokens:
            lowest = tf.constant(float("-inf"), wide)
            logits = tf.where(tf.range(p.num_tokens) < size, logits, lowest)
        return logits


class _LogitsSlice(SliceLayer, LogitsLayer):
    """A slice with the logits of some tokens.

    It never passes on all logits, but a NestedMap of tensors `[B, T]`: the maximum, the
    sum of exponentials of logit - maximum, the label's logit, the sum of logits, and
    the token of the maximum. The last slice returns what `token_metrics` needs.
    """

    UNITS = "num_tokens"
    AXES: ClassVar = {"w": 0, "b": 0}

    def Own(self, theta: NestedMap, state: NestedMap) -> NestedMap:
        p, logits = self.params, super().Own(theta, state)
        labels = as_indices(state[p.stream].labels, "labels") - p.begin
        # Labels outside of the vocabulary fail as in the whole layer.
        is_own = (labels >= 0) | (p.begin == 0)
        is_own &= (labels < p.num_tokens) | self.IsLast(p)
        of_label = tf.gather(logits, tf.where(is_own, labels, 0), batch_dims=2)
        maximum = tf.stop_gradient(tf.reduce_max(logits, -1))
        return NestedMap(
            maximum=maximum,
            exponentials=tf.reduce_sum(tf.exp(logits - maximum[..., None]), -1),
            label=tf.where(is_own, of_label, tf.zeros_like(of_label)),
            total=tf.reduce_sum(logits, -1),
            best=tf.argmax(logits, -1) + p.begin,
        )

    def Merge(self, partial: NestedMap, own: NestedMap) -> NestedMap:
        before = tf.stop_gradient(partial.maximum)
        maximum = tf.maximum(before, own.maximum)
        exponentials = partial.exponentials * tf.exp(before - maximum)
        exponentials += own.exponentials * tf.exp(own.maximum - maximum)
        return NestedMap(
            maximum=maximum,
            exponentials=exponentials,
            label=partial.label + own.label,
            total=partial.total + own.total,
            best=tf.where(own.maximum > before, own.best, partial.best),
        )

    def Finish(self, result: NestedMap) -> NestedMap:
        return NestedMap(
            log_sum=tf.stop_gradient(result.maximum) + tf.math.log(result.exponentials),
            label=result.label,
            mean=result.total / self.params.whole,
            best=result.best,
        )


def token_metrics(
    logits: tf.Tensor | NestedMap,
    labels: tf.Tensor,
    weights: tf.Tensor,
    label_smoothing: float = 0,
) -> NestedMap:
    """Returns weighted means over all tokens, in float32 or wider.

    `logits` are `[B, T, V]`, or the outputs of a LogitsLayer in slices. Labels and
    weights are `[B, T]`. As in `softmax_cross_entropy`, the means are pairs (mean,
    total weight). `loss` has smoothed labels. `log_pplx` is the cross entropy in nats,
    without smoothing. The third is `accuracy`.
    """
    labels = as_indices(labels, "labels")
    if isinstance(logits, NestedMap):
        of_label, mean, best = logits.label, logits.mean, logits.best
        log_pplx = logits.log_sum - of_label
    else:
        log_pplx = cross_entropies(logits, labels)
        logits = tf.cast(logits, log_pplx.dtype)
        best = tf.argmax(logits, -1)
        if label_smoothing:
            of_label = tf.gather(logits, labels, batch_dims=2)
            mean = tf.reduce_mean(logits, -1)
    weights = tf.cast(weights, log_pplx.dtype)
    losses = log_pplx
    if label_smoothing:
        # The cross entropies of label and mean differ only by their logits.
        losses += label_smoothing * (of_label - mean)
    correct = tf.equal(best, tf.cast(labels, tf.int64))
    accuracy = tf.cast(correct, log_pplx.dtype)
    return weighted_means(weights, loss=losses, log_pplx=log_pplx, accuracy=accuracy)
