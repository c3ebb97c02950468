"""The batches of a training run: the position to resume at, and groups to train on."""

import inspect
import itertools
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.debug.diagnosis import naming_reads


class InputPosition:
    """The position in the data at which a resumed run continues.

    The position is the text that the input's method `Place` returns (see the module
    `input_generator`). For an input without this method, the position is empty.
    """

    def __init__(self, train_input: Any):
        self._input = train_input
        # A user's input may inherit `Place`, but override `TrainBatches`.
        arguments = inspect.signature(train_input.TrainBatches).parameters
        self._has_position = hasattr(train_input, "Place") and "place" in arguments
        with tf.device("/CPU:0"):
            self._text = tf.Variable("", trainable=False)

    def state(self) -> dict[str, tf.Variable]:
        """Returns the variable that holds the position, by its name in checkpoints."""
        return {"input_place": self._text}

    def set_batch(self, index: int) -> None:
        """Sets the position, for the next checkpoint, to the start of batch `index`."""
        self._text.assign(self._input.Place(index) if self._has_position else "")

    def batches(self, index: int) -> tf.data.Dataset:
        """Returns all batches of the input from batch `index` on."""
        if not self._has_position:
            return self._input.TrainBatches(index)
        return self._input.TrainBatches(index, place=self._text.numpy().decode())


class BatchGroups:
    """Groups of consecutive batches of the same shapes, to be trained in one call."""

    def __init__(self, batches: Iterable[NestedMap]):
        self._batches = naming_reads(batches)
        self._ahead: list[NestedMap] = []

    def next(self, max_size: int) -> list[NestedMap]:
        """Returns up to `max_size` batches of equal shapes, or [] if none are left."""
        group, self._ahead = self._ahead, []
        for batch in itertools.islice(self._batches, max_size - len(group)):
            if group and _shapes(batch) != _shapes(group[0]):
                self._ahead = [batch]
                break
            group.append(batch)
        return group


def max_group(task_params: Params, step: int) -> int:
    """Returns how many steps the call after `step` steps may train.

    A call must end where a checkpoint, histogram or evaluation is due.
    """
    p = task_params
    intervals = (
        p.train.save_interval_steps,
        p.train.histogram_interval_steps,
        p.eval.interval_steps,
    )
    return min(
        p.train.steps_per_loop,
        p.train.max_steps - step,
        *(interval - step % interval for interval in intervals if interval),
    )


def _shapes(batch: NestedMap) -> list[tf.TensorShape]:
    return [x.shape for x in tf.nest.flatten(batch)]
