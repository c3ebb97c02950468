"""Classification of images: B examples, `[H, W, C]` each, N classes."""

from typing import Any

import tensorflow as tf

from lingvo_pipe.core.nests import as_args
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.softmax_cross_entropy import (
    check_label_smoothing,
    softmax_cross_entropy,
)
from lingvo_pipe.models.amoebanet.stem_and_head import HeadLayer
from lingvo_pipe.models.images.classification_images import ClassificationImages
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.task.base_task import BaseTask
from lingvo_pipe.training.task.image_checks import check_images, declared_size
from lingvo_pipe.training.task.protocols import EvalImages


class ImageClassifier(BaseTask):
    """A task that trains a pipeline from images to logits `[B, N]` with cross entropy.

    Batches have `image` `[B, H, W, C]`, `label` and `weight` `[B]`. The input's
    `class_names`, if any, name the classes in evaluation images.
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        smoothing = "Fraction of the target spread over all classes."
        p.Define("label_smoothing", 0.0, smoothing)
        p.Define(
            "feed_targets",
            False,
            "True if the first layer also receives label and weight in training, to "
            "pass them on to an AuxiliaryClassifierLayer.",
        )
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        check_label_smoothing(self.params.label_smoothing)

    @classmethod
    def LocalHead(
        cls, p: InstantiableParams, num_cells: int, passed_on: Any, predictions: Any
    ) -> InstantiableParams:
        """Returns params of a dense head. For images, ReLU and a mean come first."""
        first, *extra_outputs = as_args(passed_on)
        rank = first.shape.rank if isinstance(first, tf.TensorSpec) else None
        if rank == 4:
            head = HeadLayer.Params().Set(keep_prob=1.0, num_in=first.shape[-1])
            return head.Set(num_classes=predictions.shape[-1])
        if rank == 2 and not extra_outputs:
            head = FCLayer.Params().Set(input_dim=first.shape[-1])
            return head.Set(output_dim=predictions.shape[-1])
        return super().LocalHead(p, num_cells, passed_on, predictions)

    @classmethod
    def CheckInput(cls, p: InstantiableParams, input_generator: Any) -> None:
        """Raises ValueError if the input's channels or classes do not fit the model."""
        check_images(
            input_generator,
            declared_size(p.pipeline, 0, ("filter_shape", "num_in")),
            declared_size(p.pipeline, -1, ("num_classes", "output_dim")),
        )

    def PipelineInputs(self, input_batch: NestedMap) -> list[tf.Tensor]:
        """Returns the images and, with feed_targets in training, labels and weights."""
        if self.params.feed_targets and not self.do_eval:
            return [input_batch.image, input_batch.label, input_batch.weight]
        return [input_batch.image]

    def LossTargets(self, input_batch: NestedMap) -> NestedMap:
        return NestedMap(label=input_batch.label, weight=input_batch.weight)

    def MakeEvalImages(self, input_generator: Any) -> EvalImages:
        return ClassificationImages(getattr(input_generator, "class_names", ()))

    def ServingOutputs(self, predictions: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns float32 `logits` and `probabilities` `[B, N]`, and `label` `[B]`."""
        logits = tf.cast(predictions, tf.float32)
        return {
            "logits": logits,
            "probabilities": tf.nn.softmax(logits),
            "label": tf.argmax(logits, axis=-1, output_type=tf.int32),
        }

    def ComputeLoss(self, predictions: tf.Tensor, targets: NestedMap) -> NestedMap:
        """Returns `loss` and `accuracy`. Labels are smoothed in training only."""
        smoothing = 0.0 if self.do_eval else self.params.label_smoothing
        label, weight = targets.label, targets.weight
        return softmax_cross_entropy(predictions, label, weight, smoothing)
