"""The protocol of inputs: four members that training and evaluation use.

Any class with these four can be a model's input. With `class_names`, in the order of
the labels, evaluations of images show the names. If its params have `dataset`,
--dataset sets it, by the class method `ReplaceDataset(params, name)` if there is one.

If an input reaches a late batch only by processing earlier data, its `Place(step)` may
return that batch's position as a text, which checkpoints store, and TrainBatches accept
it as a second argument `place`.
"""

from typing import Protocol

import tensorflow as tf

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.nested_map import NestedMap


class InputGenerator(Protocol):
    """A source of batches for training or evaluation.

    A batch is a NestedMap of tensors with the names that the task reads, such as
    `image` and `weight`. Batches have the same shapes; padding of `weight` 0 fills the
    last one.
    """

    @property
    def params(self) -> Params:
        """The params. Training reads `batch_size`, the examples in a batch."""

    @property
    def element_spec(self) -> NestedMap:
        """The tf.TensorSpec of each tensor of a batch, known without data."""

    def TrainBatches(self, start_step: int = 0) -> tf.data.Dataset:
        """Returns endless batches after `start_step`, each by params and number."""

    def EvalBatches(self) -> tf.data.Dataset:
        """Returns batches with every example once, always in the same order."""
