"""The tf.data pipeline from example numbers to batches.

    Draws                     numbers of examples, K at a time, of N
      | fetch                 the examples' records, in parallel
      | example               decode and transform each record, in parallel
      | batch, prefetch
    batches

An example is a function of its Draw and its record, so a batch has the same bytes at
any parallelism. Memory holds only a few batches.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from lingvo_pipe.input.example_order import stream_indices
from lingvo_pipe.input.images.image_source import ImageSource
from lingvo_pipe.input.tf_data import (
    BATCHES_AHEAD,
    call_numpy,
    map_plainly,
    with_own_threads,
)

# Examples fetched by one call: enough to make calls cheap, few enough for memory.
CHUNK_SIZE = 32


class Draw(NamedTuple):
    """One example to read, as tensors `[]`, or K examples, as tensors `[K]`."""

    epoch: tf.Tensor  # int64, the number of earlier passes over the data set
    index: tf.Tensor  # int64, the example's number, from 0 to N - 1
    weight: tf.Tensor  # float32, 1 for an example and 0 for padding


def training_draws(seed: int | None, start: int, num_examples: int) -> tf.data.Dataset:
    """Returns training's endless Draws, CHUNK_SIZE at a time. See `stream_indices`."""

    def indices(first: np.ndarray) -> np.ndarray:
        return stream_indices(seed, int(first), int(first) + CHUNK_SIZE, num_examples)

    def draw(first: tf.Tensor) -> Draw:
        index = call_numpy(indices, first, tf.TensorSpec([CHUNK_SIZE], tf.int64))
        epochs = (first + tf.range(CHUNK_SIZE, dtype=tf.int64)) // num_examples
        return Draw(epochs, index, tf.ones([CHUNK_SIZE]))

    return map_plainly(tf.data.Dataset.counter(start, CHUNK_SIZE), draw, None)


def one_pass(num_examples: int, num_draws: int | None = None) -> tf.data.Dataset:
    """Returns Draws of all N examples in order, CHUNK_SIZE at a time.

    If `num_draws` exceeds N, the last example is repeated with weight 0.
    """

    def draw(position: tf.Tensor) -> Draw:
        return Draw(
            tf.zeros_like(position),
            tf.minimum(position, num_examples - 1),
            tf.cast(position < num_examples, tf.float32),
        )

    positions = tf.data.Dataset.range(num_draws or num_examples).batch(CHUNK_SIZE)
    return map_plainly(positions, draw, None)


def read_examples(
    source: ImageSource,
    draws: tf.data.Dataset,
    make_example: Callable[[Draw, Any], Any],
    num_parallel_calls: int | None = None,
) -> tf.data.Dataset:
    """Reads the examples that `draws` select, in the order of `draws`.

    An element of `draws` is a `Draw` of K examples. An element of the result is
    `make_example(draw, record)` for one example. Several are made in parallel.
    """
    parallel = num_parallel_calls or tf.data.AUTOTUNE
    records = map_plainly(
        draws, lambda draw: (draw, source.Fetch(draw.index)), parallel
    )
    options = tf.data.Options()
    options.deterministic = True
    examples = map_plainly(records.unbatch(), make_example, parallel)
    return with_own_threads(examples.with_options(options))


def in_batches(examples: tf.data.Dataset, batch_size: int) -> tf.data.Dataset:
    """Returns the full batches of examples, with prefetching. Drops the remainder."""
    return examples.batch(batch_size, drop_remainder=True).prefetch(BATCHES_AHEAD)
