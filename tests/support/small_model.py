"""A model that is built in a second, with dropout and batch norm."""

from __future__ import annotations

import model_registry
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.images.image_input import ImageClassificationInput
from lingvo_pipe.layers.batch_norm import BatchNormLayer
from lingvo_pipe.layers.convolution import Conv2DLayer, GlobalAveragePoolingLayer
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.dropout import DropoutLayer
from lingvo_pipe.models.images.image_classifier import ImageClassifier
from lingvo_pipe.training.optim.keras_optimizer import OptimizerParams
from lingvo_pipe.training.task.single_task_model_params import SingleTaskModelParams


@model_registry.RegisterSingleTaskModel
class Small(SingleTaskModelParams):
    def Train(self) -> InstantiableParams:
        return ImageClassificationInput.Params().Set(batch_size=16, pixel_max=16)

    def Test(self) -> InstantiableParams:
        return self.Train().Set(split="test")

    def Task(self) -> InstantiableParams:
        p = ImageClassifier.Params()
        p.pipeline.Set(
            cell_tpl=[
                Conv2DLayer.Params().Set(filter_shape=[3, 3, 1, 8], bias=True),
                BatchNormLayer.Params().Set(dim=8),
                GlobalAveragePoolingLayer.Params(),
                DropoutLayer.Params().Set(keep_prob=0.9),
                FCLayer.Params().Set(input_dim=8, output_dim=10),
            ],
            splits=2,
            num_micro_batches=4,
        )
        p.train.Set(learning_rate=0.01, optimizer=OptimizerParams("Adam"), max_steps=3)
        p.eval.images = False  # They would need another graph.
        return p
