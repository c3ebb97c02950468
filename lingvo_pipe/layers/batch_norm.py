"""Batch normalization within a pipeline.

Training normalizes by the micro-batch's own moments. The moving averages, which
evaluation uses, move once per step by the moments of the whole mini-batch (GPipe,
section 2). FProp reports the moments as sums and changes no state, so recomputation is
harmless.

Shapes: C channels. Inputs are `[..., C]`, averaged over all other dimensions. Paddings
have the leading dimensions of the inputs, such as `[B, T]` of `[B, T, C]`: 1 or True
marks a position that no moment includes, and whose output is 0, even if it is infinite.
"""

import contextlib
import math
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.core.nests import wide_dtype
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core import forward_context
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.checks import check_channels, check_param, check_positive
from lingvo_pipe.layers.core.weights import WeightInit, WeightParams
from lingvo_pipe.nested_map import NestedMap

_FUSED_DTYPES = (tf.float32, tf.bfloat16, tf.float16)

Moments = tuple[tf.Tensor, tf.Tensor]  # mean, variance


def averaging_rate(decay: float, num_steps: Any) -> tf.Tensor:
    """Returns the rate, [] float64, at which a moving average takes in a new value.

        average ← average + rate(n) · (value - average)
        rate(n) = max(1 - decay, 9 / (10 + n)) = 1 - min(decay, (1 + n) / (10 + n))

    n, [] integer, is the number of trained steps, the newest included. The old
    average's weight is `decay` in the long run, and smaller at first, so that a short
    run does not depend on initial values. TensorFlow 1's moving averages with
    num_updates, Lingvo's and AmoebaNet's (tf/tpu, amoeba_net) have the same rate. Batch
    norm's moments and a run's averaged weights must be averages over the same steps: a
    variance that belongs to other weights would scale later outputs wrongly.
    """
    early = 9.0 / (10.0 + tf.cast(num_steps, tf.float64))
    return tf.maximum(tf.constant(1.0 - decay, tf.float64), early)


class BatchNormLayer(BaseLayer):
    """Batch norm: gamma·(x - mean) / √(variance + epsilon) + beta."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("dim", 0, "C.")
        p.Define("decay", 0.999, "Weight of the old moving average, in the long run.")
        p.Define("epsilon", 1e-3, "Added to the variance.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        p = self.params
        check_param(self, "decay", lambda x: 0.0 <= x < 1.0, "a number in [0, 1)")
        check_positive(self, "epsilon")
        # Moving averages in half precision would lose small steps.
        wide = wide_dtype(p.dtype)
        zeros, ones = WeightInit.Constant(0.0), WeightInit.Constant(1.0)
        self.CreateVariable("beta", WeightParams([p.dim], zeros))
        self.CreateVariable("gamma", WeightParams([p.dim], ones))
        for name, init in (("moving_mean", zeros), ("moving_variance", ones)):
            self.CreateVariable(name, WeightParams([p.dim], init, wide), False)
        # In float64 a variance much smaller than the squared mean survives the sums.
        self.RegisterAccumulator("count", [], tf.float64)
        self.RegisterAccumulator("sum", [p.dim], tf.float64)
        self.RegisterAccumulator("square_sum", [p.dim], tf.float64)

    def FProp(
        self, theta: NestedMap, inputs: tf.Tensor, paddings: Any = None
    ) -> tf.Tensor:
        """Maps `[..., C]` to `[..., C]`. If `paddings` is None, nothing is padding.

        Raises:
            ValueError: if the inputs lack C channels, or the paddings do not fit them.
        """
        check_channels(inputs, self.params.dim, self._path)
        inputs = tf.cast(inputs, self.fprop_dtype)
        if paddings is None:
            return self._normalized(theta, inputs, None)
        is_kept = _is_kept(inputs, paddings, self._path)
        # Selected, not only multiplied by 0: padded values may be infinite.
        kept = tf.where(is_kept, inputs, tf.zeros([], inputs.dtype))
        outputs = self._normalized(theta, kept, is_kept)
        return tf.where(is_kept, outputs, tf.zeros([], outputs.dtype))

    def _normalized(
        self, theta: NestedMap, inputs: tf.Tensor, is_kept: tf.Tensor | None
    ) -> tf.Tensor:
        """Returns outputs, and accumulates the moments where `is_kept`, `[..., 1]`."""
        p = self.params
        normalize = _fused if inputs.dtype in _FUSED_DTYPES else _composed
        if self.do_eval:
            moments = (theta.moving_mean, theta.moving_variance)
            return normalize(theta, inputs, p.epsilon, moments)[0]
        weights = forward_context.current_context().row_weights(inputs)
        if is_kept is not None:
            kept = tf.cast(is_kept, inputs.dtype)
            weights = kept if weights is None else weights * kept
        if weights is None:
            outputs, mean, variance = normalize(theta, inputs, p.epsilon, None)
        else:
            outputs, mean, variance = _weighted(theta, inputs, p.epsilon, weights)
        num_rows = tf.convert_to_tensor(_num_rows(inputs, weights), tf.float64)
        mean, variance = (tf.cast(x, tf.float64) for x in (mean, variance))
        self.Accumulate("count", num_rows)
        self.Accumulate("sum", num_rows * mean)
        self.Accumulate("square_sum", num_rows * (variance + mean**2))
        return outputs

    def PostTrainingStepUpdate(self, accumulated: NestedMap) -> None:
        """Moves the moving averages towards the mini-batch's moments."""
        moving = self.vars
        with tf.device(moving.moving_mean.device):
            decay, step = self.params.decay, forward_context.current_context().step
            if step is None:
                rate = tf.constant(1.0 - decay, tf.float64)
            else:
                rate = averaging_rate(decay, step + 1)
            rate *= tf.cast(accumulated.count > 0.0, rate.dtype)
            count = tf.maximum(accumulated.count, 1.0)
            mean = accumulated.sum / count
            variance = accumulated.square_sum / count - mean**2
            _move(moving.moving_mean, mean, rate)
            _move(moving.moving_variance, tf.maximum(variance, 0.0), rate)


def _move(average: tf.Variable, value: tf.Tensor, rate: tf.Tensor) -> None:
    step = tf.cast(value, average.dtype) - average
    average.assign_add(tf.cast(rate, average.dtype) * step)


def _is_kept(inputs: tf.Tensor, paddings: Any, path: str) -> tf.Tensor:
    """Returns False at paddings of 1 or True, in a shape that broadcasts to inputs."""
    expanded, shape = tf.convert_to_tensor(paddings), inputs.shape[:-1].concatenate(1)
    while expanded.shape.rank < shape.rank:
        expanded = expanded[..., tf.newaxis]
    with contextlib.suppress(ValueError):  # If they do not broadcast.
        if tf.broadcast_static_shape(expanded.shape, shape).is_compatible_with(shape):
            is_boolean = expanded.dtype == tf.bool
            return tf.logical_not(expanded) if is_boolean else expanded != 1
    raise UserValueError(
        path=f"{path}.paddings",
        expected=f"the leading dimensions of {shape}, as of the inputs",
        got=Words(f"shape {expanded.shape}"),
    )


def _num_rows(inputs: tf.Tensor, weights: tf.Tensor | None = None) -> Any:
    """Returns the number of values per channel: a static float or a float64 tensor."""
    size: Any
    if inputs.shape.is_fully_defined():
        size = float(math.prod(inputs.shape[:-1]))
    else:
        size = tf.cast(tf.size(inputs, tf.int64), tf.float64) / inputs.shape[-1]
    if weights is None:
        return size
    weights = tf.cast(weights, tf.float64)
    return size * tf.reduce_mean(weights)


def _weighted(
    theta: NestedMap, inputs: tf.Tensor, epsilon: float, weights: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Normalizes by the moments of only the rows of weight 1, like `_composed`.

    If all weights are 0, the moments are of all rows, so that they are finite.
    """
    wide = wide_dtype(inputs.dtype)
    values = tf.cast(inputs, wide)
    axes = list(range(inputs.shape.rank - 1))
    weights = tf.where(tf.reduce_any(weights > 0), weights, tf.ones_like(weights))
    moments = tf.nn.weighted_moments(values, axes, tf.cast(weights, wide))
    scale = NestedMap(gamma=tf.cast(theta.gamma, wide), beta=tf.cast(theta.beta, wide))
    outputs, mean, variance = _composed(scale, values, epsilon, moments)
    return tf.cast(outputs, inputs.dtype), mean, variance


def _composed(
    theta: NestedMap, inputs: tf.Tensor, epsilon: float, moments: Moments | None
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns (outputs, mean, variance). If `moments` is None, they are the inputs'."""
    if moments is None:
        moments = tf.nn.moments(inputs, list(range(inputs.shape.rank - 1)))
    mean, variance = (tf.cast(moment, inputs.dtype) for moment in moments)
    factor = theta.gamma * tf.math.rsqrt(variance + epsilon)
    return (inputs - mean) * factor + theta.beta, mean, variance


def _fused(
    theta: NestedMap, inputs: tf.Tensor, epsilon: float, moments: Moments | None
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Does what `_composed` does by one operation, with float32 moments and weights."""
    image = inputs
    if inputs.shape.rank != 4:
        image = tf.reshape(inputs, [-1, 1, 1, inputs.shape[-1]])
    mean, variance = moments or [tf.zeros([0])] * 2
    outputs, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
        x=image,
        scale=tf.cast(theta.gamma, tf.float32),
        offset=tf.cast(theta.beta, tf.float32),
        mean=tf.cast(mean, tf.float32),
        variance=tf.cast(variance, tf.float32),
        epsilon=epsilon,
        is_training=moments is None,
    )
    if moments is None:
        # The operation returns a variance divided by n - 1, but normalizes by n.
        n, variance = _num_rows(inputs), tf.cast(variance, tf.float64)
        if isinstance(n, float) and n > 1.0:
            variance *= (n - 1.0) / n
        else:
            n = tf.convert_to_tensor(n, tf.float64)
            biased = variance * ((n - 1.0) / n)
            variance = tf.where(n > 1.0, biased, tf.zeros_like(biased))
    if image is not inputs:
        outputs = tf.reshape(outputs, tf.shape(inputs))
    return outputs, mean, variance
