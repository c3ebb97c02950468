"""Registered models at a size that a test can afford, and batches for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

import model_registry
from lingvo_pipe.hyperparams import InstantiableParams, Params
from lingvo_pipe.nested_map import NestedMap
from params.image.amoebanet_model import AmoebaNetModel

NUM_CLASSES = 5


def reduced_params(name: str, **constants: Any) -> Any:
    """The params of a model and its training data.

    Args:
        name: of the model.
        **constants: of its class, in place of those that make it small.
    """
    cls = model_registry.GetClass(name)
    if issubclass(cls, AmoebaNetModel):
        return _reduced_amoebanet(cls, constants)
    return _params(cls())


def _params(model: Any) -> Params:
    params = model.Model()
    params.input = model.Train()
    return params


def _reduced_amoebanet(cls: type[AmoebaNetModel], constants: dict[str, Any]) -> Params:
    small = {
        "NUM_CELLS": 3,
        "NUM_FILTERS": 32,  # Of 16 a bottleneck has 1, whose gamma has no gradient.
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


def _shortened(cells: list[InstantiableParams]) -> list[InstantiableParams]:
    """The network up to its auxiliary head, and its head behind that."""
    (end,) = [i for i, p in enumerate(cells) if p.name == "auxiliary_head"]
    head = cells[-1].Copy().Set(num_in=cells[end].classifier.num_in)
    return [*cells[: end + 1], head]


def batches(params: Any) -> Iterator[NestedMap]:
    """Training batches of random numbers."""
    spec, step = params.input.Instantiate().element_spec, 0
    while True:
        yield NestedMap(
            image=tf.random.stateless_normal(spec.image.shape, [step, 1]),
            label=tf.random.stateless_uniform(
                spec.label.shape, [step, 2], maxval=NUM_CLASSES, dtype=tf.int32
            ),
            weight=tf.ones(spec.weight.shape),
        )
        step += 1
