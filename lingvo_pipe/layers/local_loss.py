"""LocalLossLayer: the end of a block of layers that has a loss of its own.

    block 0                      block 1
    l0 -> l1 -> [local loss] ->| l2 -> l3 -> loss        |: no gradient goes back
                    `-> head -> loss

Laskin et al. 2020 (arXiv 2012.03837), figure 2: truncated layer-wise backpropagation.
"""

from typing import Any

import tensorflow as tf

from lingvo_pipe.core.nests import is_differentiable, map_present
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core import forward_context
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.nested_map import NestedMap


class LocalLossLayer(BaseLayer):
    """The end of a block of cells that is trained by a loss of its own.

    In training, the layer passes on its inputs but no gradient. It also runs `head`,
    which maps the inputs to predictions like the model's, and applies the model's loss
    to these predictions. The loss is a mean over the same examples or tokens as the
    model's. It is reported as `<loss_name>_loss`. In evaluation, and wherever there is
    no loss, the head does not run and gradients pass. The targets come from the
    `PipeliningLayer` whose cell the layer is.
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("head", None, "Params of a layer: outputs -> the loss's predictions.")
        loss_name = "Prefix of the metrics; blocks that share it are averaged."
        p.Define("loss_name", "local", loss_name)
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.CreateChild("head", self.params.head)

    def FProp(self, theta: NestedMap, *args: Any) -> Any:
        """Returns the inputs. In training, also runs the head and records its loss."""
        context = forward_context.current_context()
        if context.compute_loss is not None:
            outputs = self.head.FProp(theta.head, *args)
            context.add_local_loss(self.params.loss_name, context.compute_loss(outputs))
            args = map_present(
                lambda x: tf.stop_gradient(x) if is_differentiable(x) else x, args
            )
        return args[0] if len(args) == 1 else args
