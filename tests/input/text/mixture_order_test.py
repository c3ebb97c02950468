"""Orders of language pairs: sampled by temperature, a function of seed and position."""

import itertools
import math

import numpy as np
import pytest

from lingvo_pipe.input.text.mixture_order import MixtureOrder, quotas

# Sentences of three pairs, in turns and out of order.
MEMBERS = {
    "de-en": np.array([9, 1, 2, 3, 20, 21, 22, 23]),
    "fr-en": np.array([4, 8, 6]),
    "en-de": np.array([30]),
}
ROUND = 12


def order(temperature=5.0, seed=0, shuffle=True, members=None):
    return MixtureOrder(members or MEMBERS, temperature, seed, shuffle)


def stream(chosen, num_rounds):
    rounds = [chosen.sentences(number) for number in range(num_rounds)]
    assert {len(sentences) for sentences in rounds} == {sum(map(len, MEMBERS.values()))}
    return np.concatenate(rounds)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("temperature", [1, 2.5, 5])
def test_each_pair_reads_its_own_epochs(temperature, shuffle):
    whole = stream(order(temperature, shuffle=shuffle), ROUND)
    for members in MEMBERS.values():
        own = whole[np.isin(whole, members)]
        num_epochs = len(own) // len(members)
        epochs = own[: num_epochs * len(members)].reshape(num_epochs, -1)
        np.testing.assert_array_equal(np.sort(epochs), [np.sort(members)] * num_epochs)
        if not shuffle:
            np.testing.assert_array_equal(epochs, [members] * num_epochs)


@pytest.mark.parametrize("temperature", [1, 2.5, 5])
def test_each_pair_has_its_quota_in_each_round(temperature):
    names = sorted(MEMBERS)
    sizes = [len(MEMBERS[name]) for name in names]
    for number in range(ROUND):
        counts = [quotas(sizes, temperature, 12, number + n) for n in (0, 1)]
        sentences = order(temperature).sentences(number)
        found = [np.isin(sentences, MEMBERS[name]).sum() for name in names]
        assert found == np.subtract(counts[1], counts[0]).tolist()


def test_at_temperature_one_a_round_is_an_epoch():
    every = np.sort(np.concatenate(list(MEMBERS.values())))
    rounds = [order(1).sentences(number) for number in range(5)]
    np.testing.assert_array_equal(np.sort(rounds), [every] * 5)
    assert len({tuple(sentences) for sentences in rounds}) == 5


def test_pairs_are_strewn_not_in_turn():
    members = {name: np.arange(n, n + 500) for n, name in ((0, "a-b"), (500, "b-a"))}
    first = order(members=members).sentences(0) < 500
    runs = np.diff(np.flatnonzero(np.diff(first)))
    # Half of all runs are of one sentence, if the next pair is as good as tossed.
    assert 0.4 < np.mean(runs == 1) < 0.6


def test_pairs_of_one_size_are_not_in_step():
    members = {name: np.arange(n, n + 50) for n, name in ((0, "a-b"), (50, "b-a"))}
    sentences = order(members=members).sentences(0)
    one, other = (sentences[sentences < 50], sentences[sentences >= 50] - 50)
    assert np.mean(one == other) < 0.2


def test_seeds_choose_the_order():
    seeds = [*range(20), 2**64 - 1]
    assert len({tuple(order(seed=seed).sentences(0)) for seed in seeds}) == len(seeds)


def test_the_order_of_the_names_does_not_matter():
    backwards = dict(reversed(MEMBERS.items()))
    for number in range(4):
        np.testing.assert_array_equal(
            order().sentences(number), order(members=backwards).sentences(number)
        )


def test_the_order_never_changes():
    # Another order here would break every run that is resumed.
    wanted = [23, 1, 6, 8, 30, 6, 21, 30, 30, 4, 22, 9]
    assert order(seed=3).sentences(2).tolist() == wanted


def test_every_position_is_likely_to_be_of_every_pair():
    counts = np.zeros((3, 12))
    for seed, (row, members) in itertools.product(
        range(600), enumerate(MEMBERS.values())
    ):
        counts[row] += np.isin(order(1, seed).sentences(0), members)
    # The standard deviation is at most 12.
    np.testing.assert_allclose(counts, [[400] * 12, [150] * 12, [50] * 12], atol=60)


TEMPERATURES = [1, 1.5, 5, 100, math.inf]


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("sizes", [[1], [5, 5, 5], [1, 2, 300], [1] * 50 + [1000]])
def test_every_pair_has_its_due_at_any_time(sizes, temperature):
    total = sum(sizes)
    weights = (np.array(sizes) / total) ** (1 / temperature)
    probabilities = weights / weights.sum()
    counts = [quotas(sizes, temperature, total, n) for n in range(40)]
    for n, (before, after) in enumerate(itertools.pairwise(counts)):
        assert sum(before) == n * total
        assert np.all(np.abs(before - n * total * probabilities) < 1 + 1e-6)
        assert all(a >= b for a, b in zip(after, before, strict=True))
