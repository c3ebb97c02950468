"""A user's model that leaves to the planner how it is run."""

from __future__ import annotations

import model_registry
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.images.image_input import ImageClassificationInput
from lingvo_pipe.layers.convolution import GlobalAveragePoolingLayer
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.models.images.image_classifier import ImageClassifier
from lingvo_pipe.training.task.single_task_model_params import SingleTaskModelParams


@model_registry.RegisterSingleTaskModel
class Planned(SingleTaskModelParams):
    """Dense layers, for digits."""

    def Train(self) -> InstantiableParams:
        return ImageClassificationInput.Params().Set(batch_size=4, pixel_max=16)

    def Test(self) -> InstantiableParams:
        return self.Train().Set(split="test")

    def Task(self) -> InstantiableParams:
        p = ImageClassifier.Params()
        p.pipeline.Set(
            cell_tpl=[
                FCLayer.Params().Set(input_dim=1, output_dim=8, activation="RELU"),
                GlobalAveragePoolingLayer.Params(),
                FCLayer.Params().Set(input_dim=8, output_dim=10),
            ],
            splits="auto",
            num_micro_batches="auto",
            schedule="auto",
            recompute="auto",
        )
        p.train.learning_rate = 0.1
        return p
