"""The protocol of inputs: four members that training and evaluation use.

Any class with these four can be the input of a model, whose `Train` and `Test` return
its params. It needs no base class. With `class_names`, a list in the order of the
labels, evaluations of images show the names. If its params have `dataset`, --dataset
sets it, by the class method `ReplaceDataset(params, name)` if there is one.

If an input can reach a late batch only by processing all earlier data, it may have a
method `Place(step)`, which returns the position of that batch as a text, and a second
argument `place` of TrainBatches, which accepts it. Checkpoints store the text.
"""

from typing import Protocol

import tensorflow as tf

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.nested_map import NestedMap


class InputGenerator(Protocol):
    """A source of batches for training or evaluation.

    A batch is a NestedMap of tensors with the names that the task reads, such as
    `image`, `label` and `weight`. All batches have the same shapes; padding of `weight`
    0 replaces missing examples.
    """

    @property
    def params(self) -> Params:
        """The params. Training reads `batch_size`, the examples in a batch."""

    @property
    def element_spec(self) -> NestedMap:
        """The tf.TensorSpec of each tensor of a batch; needs no data."""

    def TrainBatches(self, start_step: int = 0) -> tf.data.Dataset:
        """Returns endless batches for a run that has trained `start_step` steps.

        Batch n must be a function of the params and n alone, so that a resumed run
        reads the same batches. The data repeat without end.
        """

    def EvalBatches(self) -> tf.data.Dataset:
        """Returns batches with every example once, always in the same order."""
