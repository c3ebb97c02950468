"""Registered models at a size that a test can afford, and batches for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

import model_registry
from lingvo_pipe.nested_map import NestedMap
from params.image.amoebanet_model import AmoebaNetModel

NUM_CLASSES = 10  # All data sets have as many at least.


def reduced_params(name: str) -> Any:
    """The params of a model and its training data; small ones are as they are."""
    model = model_registry.GetClass(name)()
    if isinstance(model, AmoebaNetModel):
        model = _reduced_amoebanet(type(model))
    params = model.Model()
    params.input = model.Train()
    return params


def _reduced_amoebanet(cls: type[AmoebaNetModel]) -> AmoebaNetModel:
    constants = {
        "NUM_CELLS": 3,
        "NUM_FILTERS": 32,
        "IMAGE_SIZE": cls.IMAGE_SIZE if cls.SMALL_IMAGES else 80,
        "BATCH_SIZE": 4,
        "NUM_TRAIN_EXAMPLES": 4,  # A step an epoch: the warm-up is short.
        "NUM_MICRO_BATCHES": 2,
        "SPLITS": 2,
    }
    return type(cls.__name__, (cls,), constants)()


def batches(params: Any) -> Iterator[NestedMap]:
    """Training batches: of embedded data, else of random numbers."""
    data = params.input.Instantiate()
    if params.input.dataset == "optdigits":
        yield from data.TrainBatches()
    spec, step = data.element_spec, 0
    while True:
        yield NestedMap(
            image=tf.random.stateless_normal(spec.image.shape, [step, 1]),
            label=tf.random.stateless_uniform(
                spec.label.shape, [step, 2], maxval=NUM_CLASSES, dtype=tf.int32
            ),
            weight=tf.ones(spec.weight.shape),
        )
        step += 1
