"""Registered models at a reduced size, and batches for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

import model_registry
from lingvo_pipe.hyperparams import InstantiableParams, Params
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.optim.keras_optimizer import ScheduleParams
from params.image.amoebanet_model import AmoebaNetModel
from params.lm.language_model import LanguageModel
from params.mt.translation_model import TranslationModel

NUM_CLASSES = 5

_SMALL_TRANSFORMER = {
    "NUM_LAYERS": 1,
    "HIDDEN_DIM": 16,
    "NUM_HEADS": 2,
    "MODEL_DIM": 8,
    "VOCAB_SIZE": 16,
    "LENGTH": 6,
    "BATCH_SIZE": 4,
    "NUM_MICRO_BATCHES": 2,
    "NUM_STAGES": 1,
}


def reduced_params(name: str, **constants: Any) -> Any:
    """Returns the params of a model and its training data.

    Args:
        name: the name of the model.
        **constants: constants of its class that replace the reduced ones.
    """
    cls = model_registry.GetClass(name)
    if issubclass(cls, AmoebaNetModel):
        return _reduced_amoebanet(cls, constants)
    if issubclass(cls, (LanguageModel, TranslationModel)):
        return _reduced_transformer(cls, constants)
    return _params(cls())


def _params(model: Any) -> Params:
    params = model.Model()
    params.input = model.Train()
    return params


def _reduced_amoebanet(cls: type[AmoebaNetModel], constants: dict[str, Any]) -> Params:
    small = {
        "NUM_CELLS": 3,
        "NUM_FILTERS": 32,  # With 16, a bottleneck has 1, whose gamma has no gradient.
        "NUM_CLASSES": NUM_CLASSES,
        "IMAGE_SIZE": cls.IMAGE_SIZE if cls.SMALL_IMAGES else 80,
        "BATCH_SIZE": 4,
        "NUM_TRAIN_EXAMPLES": 4,  # A step an epoch: the warm-up is short.
        "NUM_MICRO_BATCHES": 2,
        "NUM_STAGES": 1,
    }
    params = _params(type(cls.__name__, (cls,), {**small, **constants})())
    pipeline = params.task.pipeline
    pipeline.Set(cell_tpl=_shortened(pipeline.cell_tpl), splits=2)
    params.task.train.learning_rate = 0.1  # A step or two move each weight.
    return params


def _reduced_transformer(cls: Any, constants: dict[str, Any]) -> Params:
    params = _params(type(cls.__name__, (cls,), {**_SMALL_TRANSFORMER, **constants})())
    params.task.pipeline.splits = 2
    # Needed from the first step; a changing rate has no variable of its own.
    decay = ScheduleParams("ExponentialDecay", decay_steps=10, decay_rate=0.9)
    params.task.train.Set(learning_rate=0.1, lr_schedule=decay)
    return params


def _shortened(cells: list[InstantiableParams]) -> list[InstantiableParams]:
    """Returns the network up to its auxiliary head, followed by its head."""
    (end,) = [i for i, p in enumerate(cells) if p.name == "auxiliary_head"]
    head = cells[-1].Copy().Set(num_in=cells[end].classifier.num_in)
    return [*cells[: end + 1], head]


def batches(params: Any) -> Iterator[NestedMap]:
    """Yields training batches of random numbers."""
    spec, step = params.input.Instantiate().element_spec, 0
    while True:
        batch = spec.FlattenItems()
        yield spec.Pack([_drawn(name, leaf, step) for name, leaf in batch])
        step += 1


def _drawn(name: str, spec: tf.TensorSpec, step: int) -> tf.Tensor:
    """Returns a tensor of a batch of images or tokens."""
    if name.endswith(("weight", "weights")):
        return tf.ones(spec.shape)
    if spec.dtype.is_floating:
        return tf.random.stateless_normal(spec.shape, [step, 1])
    if name.endswith("segment_ids"):
        return tf.ones(spec.shape, spec.dtype)
    if name.endswith("segment_pos"):
        return tf.broadcast_to(tf.range(spec.shape[1]), spec.shape)
    return tf.random.stateless_uniform(
        spec.shape, [step, 2], maxval=NUM_CLASSES, dtype=spec.dtype
    )
