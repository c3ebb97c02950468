"""The pipeline: draws in order, whatever runs in parallel, and not far ahead."""

import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.input.example_order import stream_indices
from lingvo_pipe.input.images.image_pipeline import (
    CHUNK_SIZE,
    in_batches,
    one_pass,
    read_examples,
    training_draws,
)
from lingvo_pipe.input.images.image_source import ImageFormat


class Numbers:
    """A source of N examples; example i is the number i."""

    format = ImageFormat((None, None, 3), is_encoded=False, dtype=tf.uint8)

    def __init__(self, num_examples):
        self.num_examples = num_examples
        self.fetched = []

    def Fetch(self, indices):
        fetched = tf.numpy_function(self._fetch, [indices], tf.int64)
        return tf.ensure_shape(fetched, indices.shape)

    def _fetch(self, indices):
        self.fetched.append(len(indices))
        return indices

    def Read(self, record):
        return record, tf.cast(record, tf.int32)

    def Name(self, index):
        return f"example {index}"


def flat(draws, number):
    parts: tuple[list, ...] = ([], [], [])
    for draw in draws.take(number):
        for part, values in zip(parts, draw, strict=True):
            part.extend(values.numpy().tolist())
    return parts


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("start", [0, 1, 7, 1000, 10**12])
@pytest.mark.parametrize("num_examples", [1, 7, 100])
def test_training_draws_the_stream_of_examples(seed, start, num_examples):
    epochs, indices, weights = flat(training_draws(seed, start, num_examples), 3)
    places = np.arange(start, start + 3 * CHUNK_SIZE)
    assert epochs == (places // num_examples).tolist()
    stream = stream_indices(seed, start, start + 3 * CHUNK_SIZE, num_examples)
    assert indices == stream.tolist()
    assert weights == [1] * len(places)


@pytest.mark.parametrize("num_draws", [None, 70, 96, 200])
def test_one_pass_draws_each_once_and_then_padding(num_draws):
    epochs, indices, weights = flat(one_pass(70, num_draws), 1000)
    padding = (num_draws or 70) - 70
    assert indices == [*range(70), *[69] * padding]
    assert weights == [1] * 70 + [0] * padding
    assert set(epochs) == {0}


@pytest.mark.parametrize("num_parallel_calls", [None, 1, 2, 16])
def test_the_order_is_that_of_the_draws_whatever_takes_longer(num_parallel_calls):
    def slow_at_times(draw, record):
        def wait(index):
            time.sleep(0.003 * (index % 4 == 0))
            return index

        return tf.numpy_function(wait, [record], tf.int64)

    source = Numbers(100)
    made = read_examples(source, one_pass(100), slow_at_times, num_parallel_calls)
    assert list(made.as_numpy_iterator()) == list(range(100))


def test_examples_are_made_in_parallel():
    # Each waits for another: one at a time would wait for ever.
    barrier = threading.Barrier(2)

    def meet(draw, record):
        def wait(index):
            barrier.wait(timeout=60)
            return index

        return tf.numpy_function(wait, [record], tf.int64)

    made = read_examples(Numbers(8), one_pass(8), meet, 2)
    assert list(made.as_numpy_iterator()) == list(range(8))


def test_no_more_than_a_few_batches_are_read_ahead():
    source = Numbers(10**6)
    draws = training_draws(0, 0, source.num_examples)
    made = read_examples(source, draws, lambda draw, record: record, 2)
    batches = iter(in_batches(made, 64))
    for number in range(1, 20):
        next(batches)
        time.sleep(0.01)
        assert sum(source.fetched) <= 64 * (number + 3) + 8 * CHUNK_SIZE


def test_batches_are_full():
    made = read_examples(Numbers(70), one_pass(70, 96), lambda draw, record: record)
    batches = in_batches(made, 32)
    assert batches.element_spec == tf.TensorSpec([32], tf.int64)
    assert [len(batch) for batch in batches] == [32] * 3
