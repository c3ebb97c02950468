"""Cells that pass on two tensors, mostly alike, so XLA compiles them quickly.

Shapes: B examples, D channels of each stream; images are `[B, 4, 4, 1]`.
"""

from __future__ import annotations

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.batch_norm import BatchNormLayer
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.dropout import DropoutLayer
from lingvo_pipe.nested_map import NestedMap

DIM = 16


class EntryLayer(BaseLayer):
    """Image `[B, 4, 4, 1]` -> two streams `[B, D]`."""

    def FProp(self, theta: NestedMap, image: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        x = tf.reshape(image, [-1, DIM])
        return x, 1.0 - x


class MixingLayer(BaseLayer):
    """Adds a function of one stream to the other, and swaps them."""

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        dense = FCLayer.Params().Set(input_dim=DIM, output_dim=DIM)
        self.CreateChild("dense", dense)
        self.CreateChild("norm", BatchNormLayer.Params().Set(dim=DIM, decay=0.5))
        self.CreateChild("dropout", DropoutLayer.Params().Set(keep_prob=0.9))

    def FProp(
        self, theta: NestedMap, x: tf.Tensor, y: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        change = self.norm.FProp(theta.norm, self.dense.FProp(theta.dense, x))
        change = self.dropout.FProp(theta.dropout, tf.tanh(change))
        return y + change, x


class ExitLayer(BaseLayer):
    """Two streams `[B, D]` -> logits `[B, N]`."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("num_classes", 2, "N.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        num_classes = self.params.num_classes
        dense = FCLayer.Params().Set(input_dim=DIM, output_dim=num_classes)
        self.CreateChild("dense", dense)

    def FProp(self, theta: NestedMap, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return self.dense.FProp(theta.dense, x * y)


def stream_cells(num_cells: int, num_classes: int) -> list[InstantiableParams]:
    """Returns an entry, mixing cells and an exit."""
    mixing = [MixingLayer.Params() for _ in range(num_cells - 2)]
    last = ExitLayer.Params().Set(num_classes=num_classes)
    return [EntryLayer.Params(), *mixing, last]
