"""Handwritten digits of 8 x 8 pixels: small, real, embedded."""

from __future__ import annotations

import model_registry
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.image_input import ImageClassificationInput
from lingvo_pipe.layers.batch_norm import BatchNormLayer
from lingvo_pipe.models.amoebanet.network import amoebanet
from lingvo_pipe.models.image_classifier import ImageClassifier
from lingvo_pipe.training.keras_optimizer import OptimizerParams, ScheduleParams
from lingvo_pipe.training.single_task_model_params import SingleTaskModelParams


@model_registry.RegisterSingleTaskModel
class AmoebaNetDigits(SingleTaskModelParams):
    """A small AmoebaNet-D, in two stages with four micro-batches."""

    BATCH_SIZE = 64
    NUM_CELLS = 3
    NUM_FILTERS = 16
    SPLITS = 2
    NUM_MICRO_BATCHES = 4
    MAX_STEPS = 600

    def _Input(self, split: str) -> InstantiableParams:
        return ImageClassificationInput.Params().Set(
            dataset="optdigits", split=split, batch_size=self.BATCH_SIZE, pixel_max=16
        )

    def Train(self) -> InstantiableParams:
        """Four fifths of the images."""
        return self._Input("train")

    def Test(self) -> InstantiableParams:
        """Every fifth image."""
        return self._Input("test")

    def Task(self) -> InstantiableParams:
        """The network, and how it is trained."""
        p = ImageClassifier.Params()
        p.pipeline.Set(
            cell_tpl=amoebanet(
                genotype="D",
                num_cells=self.NUM_CELLS,
                num_filters=self.NUM_FILTERS,
                num_classes=10,
                num_image_channels=1,
                small_images=True,
                # A run is short: averages over some ten steps.
                norm_tpl=BatchNormLayer.Params().Set(decay=0.9),
            ),
            splits=self.SPLITS,
            num_micro_batches=self.NUM_MICRO_BATCHES,
        )
        p.label_smoothing = 0.1
        p.train.Set(
            learning_rate=0.05,
            optimizer=OptimizerParams("SGD", momentum=0.9, nesterov=True),
            lr_schedule=ScheduleParams("CosineDecay", decay_steps=self.MAX_STEPS),
            max_steps=self.MAX_STEPS,
        )
        return p
