"""Batch normalisation within a pipeline.

Training normalises by the micro-batch's own moments; the moving averages, which
evaluation uses, move once a step by the moments of the whole mini-batch (GPipe,
section 2). The moments leave FProp as sums, so a forward pass that runs a second time
changes nothing.

Shapes: C channels; inputs are `[..., C]` and all other dimensions are averaged over.
"""

from __future__ import annotations

import math

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.activation import elementwise_meta
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.weight_init import WeightInit
from lingvo_pipe.layers.weight_params import WeightParams
from lingvo_pipe.nested_map import NestedMap

_FUSED_DTYPES = (tf.float32, tf.bfloat16, tf.float16)


class BatchNormLayer(BaseLayer):
    """gamma·(x - mean) / √(variance + epsilon) + beta."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Params: dimension and constants."""
        p = super().Params()
        p.Define("dim", 0, "C.")
        p.Define("decay", 0.999, "What a step leaves of the moving averages.")
        p.Define("epsilon", 1e-3, "Added to the variance.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        p = self.params
        if not 0.0 <= p.decay < 1.0:
            raise ValueError(f"decay must lie in [0, 1); {self.path} has {p.decay}.")
        # Moments are never kept in half precision: it counts no further than 256.
        wide = tf.float64 if p.dtype == tf.float64 else tf.float32
        zeros, ones = WeightInit.Constant(0.0), WeightInit.Constant(1.0)
        self.CreateVariable("beta", WeightParams([p.dim], zeros))
        self.CreateVariable("gamma", WeightParams([p.dim], ones))
        for name, init in (("moving_mean", zeros), ("moving_variance", ones)):
            self.CreateVariable(name, WeightParams([p.dim], init, wide, False))
        self.RegisterAccumulator("count", [], wide)
        self.RegisterAccumulator("shifted_sum", [p.dim], wide)
        self.RegisterAccumulator("shifted_square_sum", [p.dim], wide)

    def FProp(self, theta: NestedMap, inputs: tf.Tensor) -> tf.Tensor:
        """`[..., C]` -> `[..., C]`."""
        inputs = tf.cast(inputs, self.fprop_dtype)
        if self.do_eval:
            mean, variance = theta.moving_mean, theta.moving_variance
            return self._normalize(theta, inputs, mean, variance)
        if inputs.dtype in _FUSED_DTYPES:
            outputs, mean, variance = self._normalize_fused(theta, inputs)
        else:
            mean, variance = tf.nn.moments(inputs, list(range(inputs.shape.rank - 1)))
            outputs = self._normalize(theta, inputs, mean, variance)
        self._accumulate(theta, _num_rows(inputs), mean, variance)
        return outputs

    def PostTrainingStepUpdate(self, accumulated: NestedMap) -> None:
        """Moves the averages by the mini-batch's moments."""
        moving = self.vars
        with tf.device(moving.moving_mean.device):
            shift = accumulated.shifted_sum / accumulated.count
            variance = accumulated.shifted_square_sum / accumulated.count - shift**2
            rate = 1.0 - self.params.decay
            # The sums are about the old mean, so the old mean moves by their shift.
            moving.moving_variance.assign_add(rate * (variance - moving.moving_variance))
            moving.moving_mean.assign_add(rate * shift)

    def _normalize(
        self, theta: NestedMap, inputs: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor
    ) -> tf.Tensor:
        factor = tf.math.rsqrt(variance + self.params.epsilon)
        factor = tf.cast(factor, inputs.dtype) * theta.gamma
        return inputs * factor + (theta.beta - tf.cast(mean, inputs.dtype) * factor)

    def _normalize_fused(
        self, theta: NestedMap, inputs: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        image = inputs
        if inputs.shape.rank != 4:
            image = tf.reshape(inputs, [-1, 1, 1, self.params.dim])
        outputs, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
            x=image,
            scale=tf.cast(theta.gamma, tf.float32),
            offset=tf.cast(theta.beta, tf.float32),
            mean=tf.zeros([0]),
            variance=tf.zeros([0]),
            epsilon=self.params.epsilon,
            is_training=True,
        )
        # The operation divides by n - 1 what it returns, by n what it normalises with.
        num_rows = _num_rows(inputs)
        biased = variance * (max(num_rows - 1, 1) / num_rows)
        return tf.reshape(outputs, tf.shape(inputs)), mean, biased

    def _accumulate(
        self, theta: NestedMap, num_rows: int, mean: tf.Tensor, variance: tf.Tensor
    ) -> None:
        # Sums about the moving mean, not about zero: a variance that is much smaller
        # than the squared mean survives.
        shift = mean - tf.cast(theta.moving_mean, mean.dtype)
        self.Accumulate("count", tf.constant(num_rows, tf.float32))
        self.Accumulate("shifted_sum", num_rows * shift)
        self.Accumulate("shifted_square_sum", num_rows * (variance + shift**2))

    @classmethod
    def FPropMeta(cls, p: InstantiableParams, *shapes: tuple) -> NestedMap:
        """Moments, and product and sum, for each element."""
        return elementwise_meta(shapes[0], 8)


def _num_rows(inputs: tf.Tensor) -> int:
    return math.prod(inputs.shape[:-1])
