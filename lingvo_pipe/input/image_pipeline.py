"""From the numbers of examples to batches, in tf.data.

    draws                     which examples, some at a time
      | fetch                 their records, in parallel
      | example               decode and transform each, in parallel
      | batch, prefetch
    batches

What an example becomes is a function of its draw and its record, so that a batch has
the same bytes however much runs in parallel. Memory holds a few batches, and no more.

Shapes: K examples are drawn at a time, N are in the data set.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from lingvo_pipe.input.example_order import stream_indices
from lingvo_pipe.input.image_source import ImageSource

# Examples fetched by one call: enough that calls cost little, and far less than memory
# holds.
CHUNK_SIZE = 32
_BATCHES_AHEAD = 2


class Draw(NamedTuple):
    """Which example to read; tensors [K] for several, [] for one.

    Attributes:
        epoch: int64, how often the data set has been read before.
        index: int64, the example, from 0 to N - 1.
        weight: float32, 1 for an example and 0 for padding.
    """

    epoch: tf.Tensor
    index: tf.Tensor
    weight: tf.Tensor


def training_draws(seed: int | None, start: int, num_examples: int) -> tf.data.Dataset:
    """Returns the draws of training, without end.

    Args:
        seed: Chooses the order; None reads every epoch in the order of the data set.
        start: How many examples have been drawn before.
        num_examples: N.

    Returns:
        A dataset of Draws of K examples.
    """

    def indices(first: np.ndarray) -> np.ndarray:
        return stream_indices(seed, int(first), int(first) + CHUNK_SIZE, num_examples)

    def draw(first: tf.Tensor) -> Draw:
        index = tf.numpy_function(indices, [first], tf.int64, stateful=False)
        return Draw(
            (first + tf.range(CHUNK_SIZE, dtype=tf.int64)) // num_examples,
            tf.ensure_shape(index, [CHUNK_SIZE]),
            tf.ones([CHUNK_SIZE]),
        )

    return _map(tf.data.Dataset.counter(start, CHUNK_SIZE), draw)


def one_pass(num_examples: int, num_draws: int | None = None) -> tf.data.Dataset:
    """Returns draws of every example once, in order.

    Args:
        num_examples: N.
        num_draws: How many to draw in all, those after the N-th being the last example
            as padding; None: N.

    Returns:
        A dataset of Draws of up to K examples.
    """
    places = tf.data.Dataset.range(num_draws or num_examples).batch(CHUNK_SIZE)
    return _map(
        places,
        lambda place: Draw(
            tf.zeros_like(place),
            tf.minimum(place, num_examples - 1),
            tf.cast(place < num_examples, tf.float32),
        ),
    )


def read_examples(
    source: ImageSource,
    draws: tf.data.Dataset,
    make_example: Callable[[Draw, Any], Any],
    num_parallel_calls: int | None = None,
) -> tf.data.Dataset:
    """Returns the examples that are drawn, in the order of the draws.

    Args:
        source: Where they are.
        draws: A dataset of Draws of K examples.
        make_example: Makes an element of the Draw of one example and its record.
        num_parallel_calls: How many are made at a time; None: as many as pay.
    """
    parallel = num_parallel_calls or tf.data.AUTOTUNE
    records = _map(draws, lambda draw: (draw, source.Fetch(draw.index)), parallel)
    options = tf.data.Options()
    options.deterministic = True
    # Within an operation sums would depend on the number of processors.
    options.threading.max_intra_op_parallelism = 1
    return _map(records.unbatch(), make_example, parallel).with_options(options)


def in_batches(examples: tf.data.Dataset, batch_size: int) -> tf.data.Dataset:
    """Returns full batches of examples, some of them made ahead."""
    return examples.batch(batch_size, drop_remainder=True).prefetch(_BATCHES_AHEAD)


def _map(
    dataset: tf.data.Dataset, function: Callable, parallel: int | None = None
) -> tf.data.Dataset:
    """As dataset.map, with the function as it is, not rewritten by AutoGraph."""
    return dataset.map(tf.autograph.experimental.do_not_convert(function), parallel)
