"""Datasets whose errors name the example that cannot be read."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.input.images.image_pipeline import CHUNK_SIZE, one_pass, read_examples
from lingvo_pipe.input.images.image_source import ImageSource, read_pixels


class NamedErrorsDataset(tf.data.Dataset):
    """A dataset that raises a ValueError with the name of an unreadable example.

    It has the elements of `dataset`. If the element with number `i` fails, the examples
    `examples(i)`, int `[K]`, are read again from `source`, to find the unreadable one.
    These must be the examples that may have been read for this element and for no
    earlier element. Datasets made from this dataset, such as by `map`, raise
    TensorFlow's errors.
    """

    def __init__(
        self,
        dataset: tf.data.Dataset,
        source: ImageSource,
        examples: Callable[[int], np.ndarray],
    ) -> None:
        self._dataset, self._source, self._examples = dataset, source, examples
        super().__init__(tf.data.experimental.to_variant(dataset))

    @property
    def element_spec(self) -> Any:
        return self._dataset.element_spec

    def __iter__(self) -> Iterator[Any]:
        number = 0
        try:
            for element in self._dataset:
                yield element
                number += 1
        except tf.errors.OpError:
            self._name_unreadable(number)
            raise

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._dataset]

    def _name_unreadable(self, number: int) -> None:
        for index in dict.fromkeys(self._examples(number).tolist()):
            try:
                records = self._source.Fetch(tf.constant([index], tf.int64))
                record = tf.nest.map_structure(lambda x: x[0], records)
                read_pixels(self._source, record)
            except tf.errors.OpError as error:
                raise UserValueError(
                    path="dataset",
                    expected="images that can be read and decoded",
                    got=Words(f"{self._source.Name(index)} ({reason_of(error)})"),
                    hint="Replace or remove it.",
                ) from error


def read_all(source: ImageSource, make: Callable[[Any], Any]) -> tf.data.Dataset:
    """Returns a dataset of `make(record)` for each example. Errors name the example."""
    number = source.num_examples
    examples = read_examples(source, one_pass(number), lambda _, record: make(record))
    return NamedErrorsDataset(examples, source, lambda i: consecutive(i, 1, number))


def reason_of(error: tf.errors.OpError) -> str:
    """Returns the message of an error on one line, without names of operations."""
    text = re.sub(r"\{\{.*?\}\}|\[Op:.*?\]( name:)?", "", error.message)
    return " ".join(text.split()).rstrip(".")


def consecutive(first: int, size: int, num_examples: int) -> np.ndarray:
    """Returns the numbers of the examples that may be read for a batch.

    These are `size` examples from `first` on, and a chunk of later ones.
    """
    return np.arange(first, min(first + size + CHUNK_SIZE, num_examples))
