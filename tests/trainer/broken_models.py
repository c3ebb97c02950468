"""Models of a user's, each of which breaks in its own way."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

import model_registry
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.images.image_input import ImageClassificationInput
from lingvo_pipe.layers.convolution import GlobalAveragePoolingLayer
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.models.images.image_classifier import ImageClassifier
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.task.single_task_model_params import SingleTaskModelParams


class OperationLayer(BaseLayer):
    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        tf.debugging.assert_less(tf.reduce_max(x), -1.0, message="far too large")
        return x


class PythonLayer(BaseLayer):
    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        return _multiplied(x)


def _multiplied(x: tf.Tensor) -> tf.Tensor:
    return tf.matmul(x, tf.ones([7, 3]))


class ListLayer(BaseLayer):
    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        shape: Any = [8, 8]
        self.CreateVariable("w", shape)


class LogarithmLayer(BaseLayer):
    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        return tf.math.log(x - 1.0)


class _Model(SingleTaskModelParams):
    layer: type[BaseLayer]

    def Train(self) -> InstantiableParams:
        return ImageClassificationInput.Params().Set(batch_size=8, pixel_max=16)

    def Test(self) -> InstantiableParams:
        return self.Train().Set(split="test")

    def Task(self) -> InstantiableParams:
        p = ImageClassifier.Params()
        cells = [GlobalAveragePoolingLayer.Params(), self.layer.Params()]
        cells.append(FCLayer.Params().Set(input_dim=1, output_dim=10))
        p.pipeline.Set(cell_tpl=cells, splits=2, num_micro_batches=2)
        p.train.Set(learning_rate=0.01, max_steps=1)
        return p


@model_registry.RegisterSingleTaskModel
class Operation(_Model):
    layer = OperationLayer


@model_registry.RegisterSingleTaskModel
class Python(_Model):
    layer = PythonLayer


@model_registry.RegisterSingleTaskModel
class List(_Model):
    layer = ListLayer


@model_registry.RegisterSingleTaskModel
class Logarithm(_Model):
    layer = LogarithmLayer


@model_registry.RegisterSingleTaskModel
class Task(_Model):
    def Task(self) -> InstantiableParams:
        return ImageClassifier.Params().Set(pipline=None)
