"""A residual connection around a layer, with layer norm before or after it.

    norm first (pre-norm)    x + dropout(body(norm(x)))
    norm last (post-norm)    norm(x + dropout(body(x)))

Shapes: B examples, D channels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.forward_cost import elementwise_cost
from lingvo_pipe.layers.dropout import DropoutLayer
from lingvo_pipe.layers.layer_norm import LayerNormLayer
from lingvo_pipe.nested_map import NestedMap


class ResidualLayer(BaseLayer):
    """The sum of its inputs and the outputs of another layer."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("dim", 0, "D.")
        p.Define("body", None, "Params of a layer that keeps its first input's shape.")
        p.Define("norm_tpl", LayerNormLayer.Params(), "The norm's params, without dim.")
        p.Define("norm_first", True, "True for the norm before the body.")
        p.Define("keep_prob", 1.0, "Fraction of the body's outputs that dropout keeps.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        p = self.params
        self.CreateChild("norm", _norm(p))
        self.CreateChild("body", p.body)
        self.CreateChild("dropout", DropoutLayer.Params().Set(keep_prob=p.keep_prob))

    def FProp(self, theta: NestedMap, inputs: tf.Tensor, *args: Any) -> tf.Tensor:
        """Maps `[B, ..., D]` and further inputs of the body to `[B, ..., D]`."""
        return self.Around(
            theta, inputs, lambda x: self.body.FProp(theta.body, x, *args)
        )

    def Around(
        self,
        theta: NestedMap,
        inputs: tf.Tensor,
        function: Callable[[tf.Tensor], tf.Tensor],
    ) -> tf.Tensor:
        """Computes like FProp, with a function in place of the body's FProp."""
        inputs = tf.cast(inputs, self.fprop_dtype)
        if self.params.norm_first:
            change = function(self.norm.FProp(theta.norm, inputs))
            return inputs + self.dropout.FProp(theta.dropout, change)
        total = inputs + self.dropout.FProp(theta.dropout, function(inputs))
        return self.norm.FProp(theta.norm, total)

    @classmethod
    def FPropMeta(cls, p: InstantiableParams, *shapes: Any) -> NestedMap:
        """Counts the body, the norm, the dropout and a sum."""
        norm, inputs = _norm(p), shapes[0]
        flops = p.body.cls.FPropMeta(p.body, *shapes).flops
        flops += norm.cls.FPropMeta(norm, inputs).flops
        flops += elementwise_cost(inputs, 1 if p.keep_prob == 1.0 else 4).flops
        return NestedMap(flops=flops, out_shapes=(tuple(inputs),))


def _norm(p: InstantiableParams) -> InstantiableParams:
    return p.norm_tpl.Copy().Set(dim=p.dim)
