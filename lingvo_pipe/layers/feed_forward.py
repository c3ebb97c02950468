"""The feed-forward part of a Transformer (Vaswani et al., 1706.03762, section 3.3).

Shapes: D channels, F hidden channels.
"""

from __future__ import annotations

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.dropout import DropoutLayer
from lingvo_pipe.layers.forward_cost import cost_of_sequence
from lingvo_pipe.nested_map import NestedMap


class FeedForwardLayer(BaseLayer):
    """activation(x·w1 + b1)·w2 + b2, with dropout between."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Params: sizes, activation, biases and dropout."""
        p = super().Params()
        p.Define("dim", 0, "D.")
        p.Define("hidden_dim", 0, "F.")
        p.Define("activation", "RELU", "Name of the activation, such as GELU.")
        p.Define("has_bias", True, "Whether there are b1 and b2.")
        p.Define("keep_prob", 1.0, "Of the dropout on hidden channels.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        for name, part in zip(_PARTS, _parts(self.params), strict=True):
            self.CreateChild(name, part)

    def FProp(self, theta: NestedMap, inputs: tf.Tensor) -> tf.Tensor:
        """`[B, ..., D]` -> `[B, ..., D]`."""
        hidden = self.expand.FProp(theta.expand, inputs)
        hidden = self.dropout.FProp(theta.dropout, hidden)
        return self.contract.FProp(theta.contract, hidden)

    @classmethod
    def FPropMeta(cls, p: InstantiableParams, *shapes: tuple) -> NestedMap:
        """The sum of its parts."""
        return cost_of_sequence(_parts(p), *shapes)


_PARTS = ("expand", "dropout", "contract")


def _parts(p: InstantiableParams) -> list[InstantiableParams]:
    dense = FCLayer.Params().Set(has_bias=p.has_bias)
    return [
        dense.Copy().Set(
            input_dim=p.dim, output_dim=p.hidden_dim, activation=p.activation
        ),
        DropoutLayer.Params().Set(keep_prob=p.keep_prob),
        dense.Copy().Set(input_dim=p.hidden_dim, output_dim=p.dim),
    ]
