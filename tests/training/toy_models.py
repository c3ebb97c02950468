"""Models with batches that are functions of the step.

A batch has B examples of three numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams, Params
from lingvo_pipe.nested_map import NestedMap

BATCH, CLASSES = 8, 3


class Model(NamedTuple):
    """Params of a task, and its batches by step."""

    make_params: Callable[[], InstantiableParams]
    make_batch: Callable[[int], NestedMap]


class Batches:
    """An input of some steps, whose batches are functions of the step."""

    def __init__(self, make_batch: Callable[[int], NestedMap], num_steps: int):
        self.params = Params()
        self.params.Define("batch_size", BATCH, "")
        batches = map(make_batch, range(num_steps))
        self._batches = tf.nest.map_structure(lambda *x: np.stack(x), *batches)

    @property
    def element_spec(self) -> Any:
        return self.TrainBatches().element_spec

    def TrainBatches(self, start_step: int = 0) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(self._batches).skip(start_step)

    def EvalBatches(self) -> tf.data.Dataset:
        return self.TrainBatches().take(1)


def image_batch(step: int) -> NestedMap:
    random = np.random.default_rng(step)
    return NestedMap(
        image=random.normal(size=[BATCH, 3]).astype(np.float32),
        label=random.integers(CLASSES, size=BATCH).astype(np.int32),
        weight=np.ones(BATCH, np.float32),
    )
