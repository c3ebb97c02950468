"""A classifier within a network, whose loss is trained beside the network's own.

Shapes: B examples, N classes.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.softmax_cross_entropy import (
    check_label_smoothing,
    cross_entropies,
)
from lingvo_pipe.nested_map import NestedMap


class SideClassifierLayer(BaseLayer):
    """(outputs ..., label, weight) -> outputs, and in training a loss of the first.

    The loss is the mean over the mini-batch's examples of their weighted cross
    entropies. In evaluation nothing is computed, and neither label nor weight needed.
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Params: the classifier and its loss."""
        p = super().Params()
        p.Define("classifier", None, "Params of a layer: first output -> logits.")
        p.Define("num_outputs", 1, "How many tensors, or None, come before the label.")
        p.Define("loss_name", "auxiliary_loss", "Name of the loss among the metrics.")
        p.Define("loss_weight", 1.0, "By which the loss is multiplied.")
        p.Define("label_smoothing", 0.0, "Share of the target spread over all classes.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        p = self.params
        check_label_smoothing(p.label_smoothing)
        if not p.loss_weight > 0.0:
            raise ValueError(
                f"loss_weight must be positive; {self.path} has {p.loss_weight}. For "
                "no loss leave the layer out."
            )
        self.CreateChild("classifier", p.classifier)

    def FProp(self, theta: NestedMap, *args: Any) -> Any:
        """Outputs, and in training label `[B]` and weight `[B]` -> the outputs."""
        p = self.params
        outputs, targets = args[: p.num_outputs], args[p.num_outputs :]
        if not self.do_eval:
            if len(targets) != 2:
                raise ValueError(
                    "A side classifier is trained with a label and a weight, the last "
                    f"inputs; {self.path} got {len(targets)} beside its "
                    f"{p.num_outputs} outputs. Set the task's feed_targets."
                )
            self._add_loss(theta, outputs[0], *targets)
        return outputs[0] if len(outputs) == 1 else outputs

    def _add_loss(
        self, theta: NestedMap, output: tf.Tensor, label: tf.Tensor, weight: tf.Tensor
    ) -> None:
        p = self.params
        logits = self.classifier.FProp(theta.classifier, output)
        losses = cross_entropies(logits, label, p.label_smoothing)
        weight = tf.cast(weight, losses.dtype)
        self.AddLoss(p.loss_name, p.loss_weight * weight * losses)

    @classmethod
    def FPropMeta(cls, p: InstantiableParams, *shapes: Any) -> NestedMap:
        """The classifier's, if there are a label and a weight; else nothing."""
        outputs, targets = shapes[: p.num_outputs], shapes[p.num_outputs :]
        flops = 0
        if targets:
            flops = p.classifier.cls.FPropMeta(p.classifier, outputs[0]).flops
        return NestedMap(flops=flops, out_shapes=outputs)
