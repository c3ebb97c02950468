"""A Keras model of handwritten digits, trained by the trainer.

trainer --model=image.keras_digits.KerasDigits --logdir=/tmp/keras_digits
"""

import keras

import model_registry
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.images.image_input import ImageClassificationInput
from lingvo_pipe.models.keras.keras_task import KerasTask
from lingvo_pipe.training.optim.keras_optimizer import OptimizerParams, ScheduleParams
from params.staged_model import StagedModel

_MAX_STEPS = 450


def digits_cnn(width: int = 16) -> keras.Model:
    """Returns a residual network from images `[B, 8, 8, 1]` to logits `[B, 10]`."""
    layers = keras.layers
    x = image = keras.Input((8, 8, 1))
    for filters in (width, 2 * width):
        x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))
        y = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = layers.Add()([x, layers.BatchNormalization(momentum=0.9)(y)])
        x = layers.MaxPooling2D()(x)
    x = layers.Dropout(0.3)(layers.GlobalAveragePooling2D()(x))
    return keras.Model(image, layers.Dense(10, name="logits")(x))


@model_registry.RegisterSingleTaskModel
class KerasDigits(StagedModel):
    """A residual network of Keras layers, in two stages with four micro-batches."""

    def _Input(self, split: str) -> InstantiableParams:
        return ImageClassificationInput.Params().Set(
            dataset="optdigits", split=split, batch_size=64, num_logits=10
        )

    def Task(self) -> InstantiableParams:
        p = KerasTask.ParamsOf(digits_cnn, width=16).Set(
            loss="SparseCategoricalCrossentropy",
            loss_arguments={"from_logits": True},
            metrics=["sparse_categorical_accuracy"],
        )
        p.pipeline.Set(splits=2, num_micro_batches=4)
        p.train.Set(
            max_steps=_MAX_STEPS,
            learning_rate=3e-3,
            optimizer=OptimizerParams("Adam"),
            lr_schedule=ScheduleParams("CosineDecay", decay_steps=_MAX_STEPS),
        )
        return p
