"""A model of four layers, which the study trains in seconds."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

import model_registry
from lingvo_pipe.cli.model_request import ModelRequest
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.dropout import DropoutLayer
from lingvo_pipe.models.images.image_classifier import ImageClassifier
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.optim.keras_optimizer import ScheduleParams
from lingvo_pipe.training.task.single_task_model_params import SingleTaskModelParams
from tools.local_study.studied_model import StudiedModel

STEPS, CLASSES, DIM = 8, 3, 5
CELLS = ["first", "second", "third", "last"]
_NUM_EXAMPLES = 24


class ToyInput:
    """Points, labeled by the largest of three sums of their coordinates."""

    def __init__(self, params: InstantiableParams):
        self.params = params
        random = np.random.default_rng(0)
        points = random.normal(size=[_NUM_EXAMPLES, DIM]).astype(np.float32)
        sums = points @ random.normal(size=[DIM, CLASSES])
        self._examples = NestedMap(
            image=points,
            label=sums.argmax(axis=1).astype(np.int32),
            weight=np.ones([_NUM_EXAMPLES], np.float32),
        )

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = InstantiableParams(cls)
        p.Define("batch_size", 4, "Examples in a batch.")
        return p

    @property
    def element_spec(self) -> Any:
        return self.EvalBatches().element_spec

    def TrainBatches(self, start_step: int = 0) -> Any:
        return self.EvalBatches().repeat().skip(start_step)

    def EvalBatches(self) -> Any:
        examples = tf.data.Dataset.from_tensor_slices(self._examples)
        return examples.batch(self.params.batch_size, drop_remainder=True)


@model_registry.RegisterSingleTaskModel
class Toy(SingleTaskModelParams):
    """Two layers, one that drops, and the logits."""

    def Train(self) -> InstantiableParams:
        return ToyInput.Params()

    def Test(self) -> InstantiableParams:
        return ToyInput.Params()

    def Task(self) -> InstantiableParams:
        p = ImageClassifier.Params()
        dense = FCLayer.Params().Set(input_dim=DIM, output_dim=DIM, activation="RELU")
        p.pipeline.Set(
            cell_tpl=[
                dense.Copy().Set(name="first"),
                dense.Copy().Set(name="second"),
                DropoutLayer.Params().Set(name="third", keep_prob=0.8),
                FCLayer.Params().Set(name="last", input_dim=DIM, output_dim=CLASSES),
            ],
            splits=2,
            num_micro_batches=2,
        )
        decay = ScheduleParams("CosineDecay", decay_steps=2 * STEPS)
        p.train.Set(max_steps=2 * STEPS, learning_rate=0.1, lr_schedule=decay)
        return p


def toy_model(num_steps: int = STEPS) -> StudiedModel:
    """Returns the model with its number of steps."""
    name = f"{Toy.__module__}.Toy"
    return StudiedModel(ModelRequest(name, max_steps=num_steps), 2)
