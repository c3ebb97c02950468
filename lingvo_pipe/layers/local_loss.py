"""The end of a block of layers that is trained by a loss of its own.

    block 0                      block 1
    l0 -> l1 -> [local loss] ->| l2 -> l3 -> loss        |: no gradient goes back
                    `-> head -> loss

Laskin et al. 2020 (arXiv 2012.03837), figure 2: truncated layer-wise backpropagation.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers import forward_context
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.optional_nest import map_present


class LocalLossLayer(BaseLayer):
    """Hands its inputs on, and stops their gradients; a head's outputs have a loss.

    The loss is the model's own: the head turns the block's outputs into what the last
    layer returns. It is trained by the mean over the same examples or tokens, and
    reported as `<loss_name>_loss`. In evaluation, and wherever there is no loss
    at all, the head does not run and gradients go through.

    It is a cell of a `PipeliningLayer`, which gives it the targets.
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Params: the head."""
        p = super().Params()
        p.Define("head", None, "Params of a layer: outputs -> what the loss takes.")
        p.Define(
            "loss_name",
            "local",
            "What its metrics begin with. Those of blocks that share it are averaged.",
        )
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.CreateChild("head", self.params.head)

    def FProp(self, theta: NestedMap, *args: Any) -> Any:
        """The inputs, whatever they are."""
        context = forward_context.current()
        if context.compute_loss is not None:
            outputs = self.head.FProp(theta.head, *args)
            context.add_local_loss(self.params.loss_name, context.compute_loss(outputs))
            args = map_present(_stopped, args)
        return args[0] if len(args) == 1 else args

    @classmethod
    def FPropMeta(cls, p: InstantiableParams, *shapes: Any) -> NestedMap:
        """The head's cost."""
        meta = p.head.cls.FPropMeta(p.head, *shapes)
        return NestedMap(flops=meta.flops, out_shapes=shapes)


def _stopped(x: tf.Tensor) -> tf.Tensor:
    return tf.stop_gradient(x) if x.dtype.is_floating else x
