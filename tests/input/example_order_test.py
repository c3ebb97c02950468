"""The order of examples: permutations, one stream, the same from every start."""

import itertools

import numpy as np
import pytest

from lingvo_pipe.input.example_order import permutation, stream_indices

SIZES = (1, 2, 7, 30)
SEEDS = (None, 0, 5, 2**64 - 1)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("num_examples", SIZES)
def test_every_epoch_holds_every_example_once(seed, num_examples):
    stream = stream_indices(seed, 0, 5 * num_examples, num_examples)
    epochs = np.sort(stream.reshape(5, num_examples))
    np.testing.assert_array_equal(epochs, [np.arange(num_examples)] * 5)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("num_examples", SIZES)
def test_the_stream_is_the_same_wherever_it_is_entered(seed, num_examples):
    whole = stream_indices(seed, 0, 40, num_examples)
    assert whole.dtype == np.int64
    for start, stop in itertools.combinations_with_replacement(range(41), 2):
        part = stream_indices(seed, start, stop, num_examples)
        np.testing.assert_array_equal(part, whole[start:stop])


def test_a_far_position_costs_no_more_than_the_first():
    far = stream_indices(3, 10**15, 10**15 + 8, 30)
    assert set(far) <= set(range(30))


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = [permutation(seed, epoch, 30) for seed in range(8) for epoch in range(8)]
    assert len({tuple(order) for order in orders}) == 64


def test_every_order_is_equally_likely():
    orders = [tuple(permutation(seed, 0, 3)) for seed in range(6000)]
    counts = [orders.count(order) for order in itertools.permutations(range(3))]
    # The standard deviation of each count is 29.
    assert min(counts) > 850
    assert max(counts) < 1150


def test_the_order_never_changes():
    # Another order here would break every run that is resumed.
    assert permutation(7, 2, 10).tolist() == [6, 7, 8, 4, 0, 1, 5, 3, 9, 2]
    assert permutation(2**64 - 1, 0, 10).tolist() == [8, 9, 0, 7, 4, 2, 6, 3, 1, 5]


def test_without_a_seed_the_order_is_that_of_the_data_set():
    assert stream_indices(None, 4, 8, 6).tolist() == [4, 5, 0, 1]
