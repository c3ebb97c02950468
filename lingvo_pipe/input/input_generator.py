"""What training and evaluation ask of an input.

Any class that has these four works as the input of a model, `Train` and `Test` giving
its params. It needs no base class. If it has `class_names` too, a list in the order of
the labels, evaluations of images show them.

An input that finds a batch late in the data only by working through all before it may
have a method `Place(step)`, which returns where that batch begins, as a text, and a
second argument `place` of TrainBatches, which takes it. Checkpoints hold the text.
"""

from __future__ import annotations

from typing import Protocol

import tensorflow as tf

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.nested_map import NestedMap


class InputGenerator(Protocol):
    """Makes the batches that a task is trained or evaluated on.

    A batch is a NestedMap of tensors, such as `image`, `label` and `weight`, with the
    names that the task reads. All batches have the same shapes: where examples are
    missing, padding fills the batch up, of `weight` 0.
    """

    @property
    def params(self) -> Params:
        """The params; of them `batch_size`, examples in a batch, is read."""

    @property
    def element_spec(self) -> NestedMap:
        """The tf.TensorSpec of each part of a batch, known before any data is read."""

    def TrainBatches(self, start_step: int = 0) -> tf.data.Dataset:
        """Returns the batches for every step after `start_step`, the next one first.

        Batch n must be the same in every run, wherever the run has been interrupted and
        gone on with: a function of the params and of n. There must be enough of them
        for all steps, so the data is repeated without end.

        Args:
            start_step: The steps already trained.
        """

    def EvalBatches(self) -> tf.data.Dataset:
        """Returns batches that hold every example once, in the same order each time."""
