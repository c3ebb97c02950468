"""Where in its data an input is, in checkpoints, so that it finds its place at once."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class InputPlace:
    """The place of an input that has one; see `input_generator`.

    Args:
        train_input: the input.
    """

    def __init__(self, train_input: Any):
        self._input = train_input
        self._has_place = hasattr(train_input, "Place")
        with tf.device("/CPU:0"):
            self._text = tf.Variable("", trainable=False)

    def state(self) -> dict[str, tf.Variable]:
        """What must be saved, by name; of any input, for a run may get another."""
        return {"input_place": self._text}

    def note(self, position: int) -> None:
        """Takes note of the place before the batch of a number, to be saved."""
        self._text.assign(self._input.Place(position) if self._has_place else "")

    def batches(self, position: int) -> tf.data.Dataset:
        """The batches from that of a number on."""
        if not self._has_place:
            return self._input.TrainBatches(position)
        place = self._text.numpy().decode()
        return self._input.TrainBatches(position, place=place)
