"""Errors that name the image which can't be read.

TensorFlow says which operation failed, and nothing of what it was given. So when there
is no next batch for an error, the examples it was to hold are read once more, one by
one, until one fails. Batches that come cost nothing.

Shapes: K examples.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from lingvo_pipe.input.image_decoding import decode_image
from lingvo_pipe.input.image_pipeline import CHUNK_SIZE, one_pass, read_examples
from lingvo_pipe.input.image_source import ImageFormat, ImageSource


class FaultsNamed(tf.data.Dataset):
    """A dataset whose iterators raise a ValueError that names a faulty example.

    What other datasets are made of it raises errors as they are.
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
            dataset: Whose elements these are.
            source: Where the examples are.
            image_format: What is known of the images.
            examples: Gives for the number of an element, from 0, the examples that may
                have been read for it and for no earlier one, int [K].
        """
        self._dataset = dataset
        self._source = source
        self._format = image_format
        self._examples = examples
        super().__init__(tf.data.experimental.to_variant(dataset))

    @property
    def element_spec(self) -> Any:
        """As of any dataset."""
        return self._dataset.element_spec

    def __iter__(self) -> Iterator[Any]:
        """Yields the elements.

        Raises:
            ValueError: If an example can't be read or decoded.
        """
        elements = iter(self._dataset)
        for number in itertools.count():
            try:
                element = next(elements)
            except StopIteration:
                return
            except tf.errors.OpError:
                self._NameFault(number)
                raise
            yield element

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._dataset]

    def _NameFault(self, number: int) -> None:
        """Raises a ValueError that names the first example that can't be read, if any.

        Records are fetched some at a time, so it may be one of a later element.
        """
        for index in dict.fromkeys(self._examples(number).tolist()):
            try:
                self._Read(index)
            except tf.errors.OpError as error:
                raise ValueError(
                    "every example must have an image that can be read and decoded; "
                    f"{self._source.Name(index)} has none: {_reason(error)} Replace "
                    "or remove it."
                ) from error

    def _Read(self, index: int) -> None:
        records = self._source.Fetch(tf.constant([index], tf.int64))
        record = tf.nest.map_structure(lambda x: x[0], records)
        image, _ = self._source.Read(record)
        if self._format.is_encoded:
            decode_image(image, self._format.shape[2], None)


def read_all(
    source: ImageSource, image_format: ImageFormat, make: Callable[[Any], Any]
) -> tf.data.Dataset:
    """Returns what is made of the record of each example, in order, as FaultsNamed."""
    num_examples = source.num_examples
    made = read_examples(source, one_pass(num_examples), lambda _, record: make(record))
    return FaultsNamed(
        made,
        source,
        image_format,
        lambda number: consecutive(number, 1, num_examples),
    )


def consecutive(first: int, size: int, num_examples: int) -> np.ndarray:
    """The examples that may have been read for a batch of some that follow each other.

    Args:
        first: The first of the batch.
        size: How many are in it; those after the last example are padding.
        num_examples: In all.
    """
    return np.arange(first, min(first + size + CHUNK_SIZE, num_examples))


def _reason(error: tf.errors.OpError) -> str:
    """The sentence of an error, without the names of operations."""
    text = re.sub(r"\{\{.*?\}\}|\[Op:.*?\]", "", error.message)
    return f"{' '.join(text.split()).rstrip('.')}."
