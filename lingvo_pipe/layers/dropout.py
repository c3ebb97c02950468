"""Dropout of elements and of whole examples. Shapes: B examples."""

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core import forward_context
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.checks import check_keep_prob, check_param
from lingvo_pipe.layers.core.forward_context import row_dim
from lingvo_pipe.nested_map import NestedMap


class DropoutLayer(BaseLayer):
    """Dropout: keeps each element with probability `keep_prob`, divided by `keep_prob`.

    The mask depends only on seed, layer, step and example, and on the number of earlier
    draws in the forward pass. In evaluation the layer is the identity.
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("keep_prob", 1.0, "Probability to keep an element, in (0, 1].")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        check_keep_prob(self)

    def FProp(self, theta: NestedMap, inputs: tf.Tensor) -> tf.Tensor:
        """Maps `[B, ...]` to `[B, ...]`. The shape must be static."""
        p = self.params
        inputs = tf.cast(inputs, self.fprop_dtype)
        context = forward_context.current_context()
        if context.do_eval or p.keep_prob == 1.0:
            return inputs
        # Selected, not multiplied by 0: dropped elements may be infinite.
        kept = self.Kept(inputs.shape)
        return tf.where(kept, inputs / p.keep_prob, tf.zeros([], inputs.dtype))

    def Kept(self, shape: tf.TensorShape) -> tf.Tensor:
        """Draws a boolean for each element of inputs of this shape: True if kept."""
        p, context = self.params, forward_context.current_context()
        return context.uniform(self._path, p.random_seed, shape, below=p.keep_prob)


class DropPathLayer(BaseLayer):
    """Drop-path: keeps an example as a whole, scaled up, or sets it to 0.

    The probability to drop an example grows with depth and with training
    (ScheduledDropPath, Zoph et al., 1707.07012, section 3):

        dropped = depth · progress · (1 - keep_prob)
        progress = min(1, step / num_steps)

    Masks and evaluation are as in DropoutLayer.
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define(
            "keep_prob",
            1.0,
            "Probability to keep an example at full depth and progress, in (0, 1].",
        )
        p.Define("num_steps", None, "Steps until progress is 1. If None, it always is.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        check_keep_prob(self)
        expected = "None or a number above 0"
        check_param(self, "num_steps", lambda x: x is None or x > 0, expected)

    def FProp(
        self, theta: NestedMap, inputs: tf.Tensor, depth: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Maps `[B, ...]` to `[B, ...]`. The shape must be static.

        The depth, [], is the position in the model, in (0, 1]. None means 1, the last
        position. It is a tensor and no param, so that layers at all depths share a
        trace.
        """
        p = self.params
        inputs = tf.cast(inputs, self.fprop_dtype)
        context = forward_context.current_context()
        if context.do_eval or p.keep_prob == 1.0:
            return inputs
        dim = row_dim(inputs.shape.rank, context.batch_dim)
        row_shape = [n if i == dim else 1 for i, n in enumerate(inputs.shape)]
        numbers = context.uniform(
            self._path, p.random_seed, row_shape, per_example=True
        )
        dropped = tf.constant(1.0 - p.keep_prob, tf.float64)
        if depth is not None:
            dropped *= tf.cast(depth, tf.float64)
        if p.num_steps is not None:
            progress = tf.cast(context.step, tf.float64) / p.num_steps
            dropped *= tf.minimum(progress, 1.0)
        keep_prob = 1.0 - dropped
        # Selected, not multiplied by 0: dropped elements may be infinite.
        return tf.where(
            numbers < tf.cast(keep_prob, numbers.dtype),
            inputs / tf.cast(keep_prob, inputs.dtype),
            tf.zeros_like(inputs),
        )
