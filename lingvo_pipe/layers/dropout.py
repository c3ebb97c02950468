"""Dropout from the per-example random streams.

Shapes: B examples.
"""

from __future__ import annotations

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers import forward_context
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.forward_cost import elementwise_cost
from lingvo_pipe.nested_map import NestedMap


class DropoutLayer(BaseLayer):
    """Keeps each element with probability `keep_prob`, scaled by its inverse.

    The mask is a function of seed, layer, step and example: it does not depend on how
    the mini-batch is split nor on where the layer runs. In evaluation the layer is the
    identity. A layer that runs twice in a forward pass drops the same elements twice:
    create one for each place.
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Params: how much is kept."""
        p = super().Params()
        p.Define("keep_prob", 1.0, "Probability that an element stays, in (0, 1].")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        p = self.params
        if not 0.0 < p.keep_prob <= 1.0:
            raise ValueError(
                f"keep_prob must lie in (0, 1]; {self.path} has {p.keep_prob}."
            )

    def FProp(self, theta: NestedMap, inputs: tf.Tensor) -> tf.Tensor:
        """`[B, ...]` -> `[B, ...]`; the shape must be static."""
        p = self.params
        inputs = tf.cast(inputs, self.fprop_dtype)
        context = forward_context.current()
        if context.do_eval or p.keep_prob == 1.0:
            return inputs
        numbers = context.uniform(self.path, p.random_seed, inputs.shape)
        # Chosen, not multiplied by 0: what is dropped may be infinite.
        return tf.where(
            numbers < p.keep_prob, inputs / p.keep_prob, tf.zeros_like(inputs)
        )

    @classmethod
    def FPropMeta(cls, p: InstantiableParams, *shapes: tuple) -> NestedMap:
        """Comparison, quotient and choice for each element."""
        return elementwise_cost(shapes[0], 0 if p.keep_prob == 1.0 else 3)
