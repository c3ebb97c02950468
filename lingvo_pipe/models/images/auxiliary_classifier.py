"""An auxiliary classifier within a network, for B examples of N classes."""

from typing import Any

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.checks import check_positive
from lingvo_pipe.layers.softmax_cross_entropy import (
    check_label_smoothing,
    cross_entropies,
)
from lingvo_pipe.nested_map import NestedMap


class AuxiliaryClassifierLayer(BaseLayer):
    """A layer that passes on its inputs, and adds a classifier's loss in training.

    The loss is the mean of the weighted cross entropies, for the first output.
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("classifier", None, "Params of a layer: first output -> logits.")
        p.Define("num_outputs", 1, "Number of tensors, or None, before the label.")
        p.Define("loss_name", "auxiliary_loss", "Name of the loss among the metrics.")
        p.Define("loss_weight", 1.0, "Factor of the loss.")
        smoothing = "Fraction of the target spread over all classes."
        p.Define("label_smoothing", 0.0, smoothing)
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        p = self.params
        check_label_smoothing(p.label_smoothing)
        check_positive(self, "loss_weight", "Remove the layer for no loss.")
        self.CreateChild("classifier", p.classifier)

    def FProp(self, theta: NestedMap, *args: Any) -> Any:
        """Returns the first `num_outputs` inputs unchanged.

        In training, two more inputs must follow: label `[B]` and weight `[B]`. In
        evaluation any further inputs are ignored.
        """
        p = self.params
        outputs, targets = args[: p.num_outputs], args[p.num_outputs :]
        if not self.do_eval:
            if len(targets) != 2:
                raise UserValueError(
                    path=self.path,
                    expected=f"label and weight after {p.num_outputs} outputs",
                    got=Words(f"{len(targets)} inputs there"),
                    hint="Set the task's feed_targets.",
                )
            label, weight = targets
            logits = self.classifier.FProp(theta.classifier, outputs[0])
            losses = cross_entropies(logits, label, p.label_smoothing)
            weight = tf.cast(weight, losses.dtype)
            self.AddLoss(p.loss_name, p.loss_weight * weight * losses)
        return outputs[0] if len(outputs) == 1 else outputs
