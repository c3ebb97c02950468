"""Errors that name the example that cannot be read.

TensorFlow's errors name the operation, not its input. So after an error, the examples
of the failed batch are read again, one by one, until one fails. Other batches cost
nothing extra.

Shapes: K examples.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.input.images.image_pipeline import CHUNK_SIZE, one_pass, read_examples
from lingvo_pipe.input.images.image_reader import decode_image, read_pixels
from lingvo_pipe.input.images.image_source import ImageFormat, ImageSource


class NamedErrorsDataset(tf.data.Dataset):
    """A dataset whose iterators raise a ValueError that names an unreadable example.

    Datasets derived from it raise TensorFlow's own errors.
    """

    def __init__(
        self,
        dataset: tf.data.Dataset,
        source: ImageSource,
        image_format: ImageFormat,
        examples: Callable[[int], np.ndarray],
    ) -> None:
        """Initialises the dataset.

        Args:
            dataset: the dataset of the elements.
            source: the source of the examples.
            image_format: the format of the images.
            examples: function from the number of an element, from 0, to the examples
                that may have been read for it and for no earlier one, int [K].
        """
        self._dataset = dataset
        self._source = source
        self._format = image_format
        self._examples = examples
        super().__init__(tf.data.experimental.to_variant(dataset))

    @property
    def element_spec(self) -> Any:
        """The specification of an element."""
        return self._dataset.element_spec

    def __iter__(self) -> Iterator[Any]:
        """Yields the elements.

        Raises:
            ValueError: if an example cannot be read or decoded.
        """
        elements = iter(self._dataset)
        for number in itertools.count():
            try:
                element = next(elements)
            except StopIteration:
                return
            except tf.errors.OpError:
                self._name_unreadable(number)
                raise
            yield element

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._dataset]

    def _name_unreadable(self, number: int) -> None:
        """Raises a ValueError that names the first unreadable example, if any.

        Records are fetched in chunks, so the example may belong to a later element.
        """
        for index in dict.fromkeys(self._examples(number).tolist()):
            try:
                self._read(index)
            except tf.errors.OpError as error:
                raise UserValueError(
                    f"dataset: expected an image that can be read and decoded, got "
                    f"{self._source.Name(index)} with the error: {_reason(error)} "
                    "Replace or remove it."
                ) from error

    def _read(self, index: int) -> None:
        records = self._source.Fetch(tf.constant([index], tf.int64))
        record = tf.nest.map_structure(lambda x: x[0], records)
        image, _ = self._source.Read(record)
        if self._format.is_encoded:
            decode_image(image, self._format.shape[2], None)


def read_all(
    source: ImageSource, image_format: ImageFormat, make: Callable[[Any], Any]
) -> tf.data.Dataset:
    """Applies a function to each example's record; errors name the example."""
    num_examples = source.num_examples
    made = read_examples(source, one_pass(num_examples), lambda _, record: make(record))
    return NamedErrorsDataset(
        made,
        source,
        image_format,
        lambda number: consecutive(number, 1, num_examples),
    )


def brightest_pixel(source: ImageSource, image_format: ImageFormat) -> float:
    """Returns the largest value of any pixel; reads the whole split.

    Raises:
        ValueError: if an image cannot be read.
    """
    maxima = read_all(
        source,
        image_format,
        lambda record: tf.reduce_max(read_pixels(source, image_format, record)[0]),
    )
    return max(maxima.as_numpy_iterator())


def consecutive(first: int, size: int, num_examples: int) -> np.ndarray:
    """Returns the consecutive examples that may have been read for a batch.

    Args:
        first: the batch's first example.
        size: examples in the batch, with padding after the last one.
        num_examples: number of all examples.
    """
    return np.arange(first, min(first + size + CHUNK_SIZE, num_examples))


def _reason(error: tf.errors.OpError) -> str:
    """Returns an error's message without names of operations."""
    text = re.sub(r"\{\{.*?\}\}|\[Op:.*?\]", "", error.message)
    return f"{' '.join(text.split()).rstrip('.')}."
