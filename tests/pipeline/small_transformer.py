"""A small Transformer as cells that pass on a residual state and an integer mask.

Shapes: B examples, T tokens, D channels, V words; a mask is 1 where a token counts.
"""

from __future__ import annotations

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.weights import WeightInit, WeightParams
from lingvo_pipe.layers.dropout import DropoutLayer
from lingvo_pipe.layers.softmax_cross_entropy import softmax_cross_entropy
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.optim.keras_optimizer import OptimizerParams
from lingvo_pipe.training.task.base_task import BaseTask

DIM = 4
NUM_WORDS = 5
NUM_TOKENS = 3


class EmbeddingLayer(BaseLayer):
    """(words [B, T], mask [B, T]) -> state of hidden [B, T, D] and mask."""

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.CreateVariable("table", WeightParams([NUM_WORDS, DIM]))
        self.CreateChild("dropout", DropoutLayer.Params().Set(keep_prob=0.9))

    def FProp(self, theta: NestedMap, words: tf.Tensor, mask: tf.Tensor) -> NestedMap:
        hidden = self.dropout.FProp(theta.dropout, tf.gather(theta.table, words))
        return NestedMap(hidden=hidden, mask=mask)


class ResidualBlock(BaseLayer):
    """Adds `_Change` of the normalised hidden state to the hidden state."""

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.CreateVariable("scale", WeightParams([DIM], WeightInit.Constant(1.0)))
        self.CreateVariable("w_in", WeightParams([DIM, 3 * DIM]))
        self.CreateVariable("w_out", WeightParams([DIM * self.OUT_FACTOR, DIM]))
        self.CreateChild("dropout", DropoutLayer.Params().Set(keep_prob=0.9))

    OUT_FACTOR = 1

    def FProp(self, theta: NestedMap, state: NestedMap) -> NestedMap:
        mean, variance = tf.nn.moments(state.hidden, [-1], keepdims=True)
        x = (state.hidden - mean) * tf.math.rsqrt(variance + 1e-3) * theta.scale
        change = self._Change(theta, x, state.mask)
        change = self.dropout.FProp(theta.dropout, change)
        return NestedMap(hidden=state.hidden + change, mask=state.mask)

    def _Change(self, theta: NestedMap, x: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        raise NotImplementedError


class AttentionLayer(ResidualBlock):
    """Attention over the tokens that count."""

    def _Change(self, theta: NestedMap, x: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        query, key, value = tf.split(tf.tensordot(x, theta.w_in, 1), 3, -1)
        scores = tf.matmul(query, key, transpose_b=True) / DIM**0.5
        ignored = tf.cast(1 - mask, scores.dtype)[:, tf.newaxis, :]
        found = tf.matmul(tf.nn.softmax(scores - 1e9 * ignored), value)
        return tf.tensordot(found, theta.w_out, 1)


class FeedForwardLayer(ResidualBlock):
    """Two dense layers for each token."""

    OUT_FACTOR = 3

    def _Change(self, theta: NestedMap, x: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        hidden = tf.nn.silu(tf.tensordot(x, theta.w_in, 1))
        return tf.tensordot(hidden, theta.w_out, 1)


class LogitsLayer(BaseLayer):
    """State -> logits [B, T, V]."""

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.CreateVariable("w", WeightParams([DIM, NUM_WORDS]))

    def FProp(self, theta: NestedMap, state: NestedMap) -> tf.Tensor:
        return tf.tensordot(state.hidden, theta.w, 1)


class TransformerTask(BaseTask):
    """Predicts words; Adam, with clipped gradients."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.pipeline.cell_tpl = transformer_cells()
        p.train.Set(
            learning_rate=0.01,
            optimizer=OptimizerParams("Adam"),
            clip_gradient_norm_to_value=1.0,
        )
        return p

    def PipelineInputs(self, input_batch: NestedMap) -> list[tf.Tensor]:
        return [input_batch.words, input_batch.mask]

    def LossTargets(self, input_batch: NestedMap) -> NestedMap:
        return NestedMap(label=input_batch.label, mask=input_batch.mask)

    def ComputeLoss(self, predictions: tf.Tensor, targets: NestedMap) -> NestedMap:
        return word_loss(predictions, targets)


def word_loss(logits: tf.Tensor, targets: NestedMap) -> NestedMap:
    """Returns the mean over the words that count."""
    return softmax_cross_entropy(logits, targets.label, targets.mask)


def transformer_cells(num_blocks: int = 7) -> list[InstantiableParams]:
    """Returns embedding, blocks of attention and feed-forward, and logits."""
    block = [AttentionLayer.Params(), FeedForwardLayer.Params()]
    return [EmbeddingLayer.Params(), *block * num_blocks, LogitsLayer.Params()]


def transformer_batch(batch_size: int, seed: int = 0) -> NestedMap:
    """Returns sentences of different lengths."""
    shape = [batch_size, NUM_TOKENS]

    def words(stream: int) -> tf.Tensor:
        return tf.random.stateless_uniform(
            shape, [seed, stream], 0, NUM_WORDS, tf.int32
        )

    lengths = 1 + (tf.range(batch_size) + seed) % NUM_TOKENS
    mask = tf.sequence_mask(lengths, NUM_TOKENS, tf.int32)
    return NestedMap(words=words(1), mask=mask, label=words(2))
