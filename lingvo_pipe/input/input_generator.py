"""The protocol of inputs: four members that training and evaluation use.

Any class with these four can be a model's input. Further members are optional:

- `class_names`: the names of the classes, in the order of the labels, which evaluations
  of images show.
- A param `dataset`: the flag --dataset sets it, by the class method
  `ReplaceDataset(params, name)` if the input has this method.
- `Place(step)`: returns a text that checkpoints store. It is the position of the batch
  before `step`, for an input that reaches a late batch only by processing earlier data,
  or a fingerprint of the data, for a warning if they have changed. TrainBatches then
  takes the text as a second argument, `place`.
- `data_fingerprint`: a DataFingerprint of the data, by which a resumed run notices that
  its test data have changed. An inherited one does not count for a class with
  EvalBatches of its own. Define it in the same class.
"""

from typing import Protocol

import tensorflow as tf

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.nested_map import NestedMap


class InputGenerator(Protocol):
    """A source of batches for training or evaluation.

    A batch is a NestedMap of tensors with the names that the task reads, such as
    `image` and `weight`. All batches have the same shapes. Padding with `weight` 0
    fills the last batch.
    """

    @property
    def params(self) -> Params:
        """The input's params. Training reads `batch_size`, the examples in a batch."""

    @property
    def element_spec(self) -> NestedMap:
        """The tf.TensorSpec of each tensor of a batch, known without data."""

    def TrainBatches(self, start_step: int = 0) -> tf.data.Dataset:
        """Returns endless batches from `start_step` on, the same in every run."""

    def EvalBatches(self) -> tf.data.Dataset:
        """Returns batches with every example once, always in the same order."""
