"""Drop-path: whole examples of a layer's output are dropped, from the random streams.

The probability grows with depth and with training (ScheduledDropPath, Zoph et al.,
1707.07012, section 3):

    dropped = depth · progress · (1 - keep_prob)
    progress = min(1, step / num_steps)

Shapes: B examples.
"""

from __future__ import annotations

import math

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers import forward_context
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.forward_context import row_dim
from lingvo_pipe.nested_map import NestedMap


class DropPathLayer(BaseLayer):
    """Keeps each example as a whole or makes it 0; what is kept is scaled up for it.

    Which are kept is a function of seed, layer, step and example, as in DropoutLayer.
    In evaluation the layer is the identity.
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Params: how much is kept, and the schedule."""
        p = super().Params()
        p.Define(
            "keep_prob",
            1.0,
            "Probability that an example stays, at full depth and the end; in (0, 1].",
        )
        p.Define("num_steps", None, "Until progress is 1; None: it is from the start.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        p = self.params
        if not 0.0 < p.keep_prob <= 1.0:
            raise ValueError(
                f"keep_prob must lie in (0, 1]; {self.path} has {p.keep_prob}."
            )
        if p.num_steps is not None and not p.num_steps > 0:
            raise ValueError(
                f"num_steps must be positive; {self.path} has {p.num_steps}. None "
                "drops as much from the start."
            )

    def FProp(
        self, theta: NestedMap, inputs: tf.Tensor, depth: tf.Tensor | None = None
    ) -> tf.Tensor:
        """`[B, ...]` -> `[B, ...]`; the shape must be static.

        Args:
            theta: empty.
            inputs: what is kept or dropped.
            depth: [], the place in the model, in (0, 1]; None: 1, the last. A tensor
                and no param, so that layers at all depths are alike and share a trace.
        """
        p = self.params
        inputs = tf.cast(inputs, self.fprop_dtype)
        context = forward_context.current()
        if context.do_eval or p.keep_prob == 1.0:
            return inputs
        dim = row_dim(inputs.shape.rank, context.batch_dim)
        row_shape = [n if i == dim else 1 for i, n in enumerate(inputs.shape)]
        numbers = context.uniform(self.path, p.random_seed, row_shape)
        kept = self._kept(context.step, depth)
        # Chosen, not multiplied by 0: what is dropped may be infinite.
        return tf.where(
            numbers < tf.cast(kept, numbers.dtype),
            inputs / tf.cast(kept, inputs.dtype),
            tf.zeros_like(inputs),
        )

    def _kept(self, step: tf.Tensor, depth: tf.Tensor | None) -> tf.Tensor:
        """The probability that an example stays at a step, [] float64."""
        p = self.params
        dropped = tf.constant(1.0 - p.keep_prob, tf.float64)
        if depth is not None:
            dropped *= tf.cast(depth, tf.float64)
        if p.num_steps is not None:
            progress = tf.cast(step, tf.float64) / p.num_steps
            dropped *= tf.minimum(progress, 1.0)
        return 1.0 - dropped

    @classmethod
    def FPropMeta(cls, p: InstantiableParams, *shapes: tuple) -> NestedMap:
        """A comparison for each example, quotient and choice for each element."""
        shape = shapes[0]
        flops = 0 if p.keep_prob == 1.0 else shape[0] + 2 * math.prod(shape)
        return NestedMap(flops=flops, out_shapes=(tuple(shape),))
