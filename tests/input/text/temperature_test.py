"""The temperature: its formula, its limits, and counts that follow it exactly."""

import itertools
import math

import numpy as np
import pytest

from lingvo_pipe.input.text.temperature import quotas, sampling_probabilities

SIZES = [10_000, 1, 37, 1_000_000_000, 500]
TEMPERATURES = [1, 1.5, 5, 100, math.inf]


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_probabilities_are_flattened_shares(temperature):
    shares = np.array(SIZES) / sum(SIZES)
    wanted = shares ** (1 / temperature)
    np.testing.assert_allclose(
        sampling_probabilities(SIZES, temperature), wanted / wanted.sum(), rtol=1e-12
    )


def test_between_every_sentence_alike_and_every_pair_alike():
    np.testing.assert_allclose(sampling_probabilities([3, 1], 1), [0.75, 0.25])
    np.testing.assert_allclose(sampling_probabilities([3, 1], math.inf), [0.5, 0.5])
    # 100,000 times as many sentences are read ten times as often.
    large, small = sampling_probabilities([10**9, 10**4], 5)
    assert large / small == pytest.approx(10)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("sizes", [[1], [5, 5, 5], [1, 2, 300], [1] * 50 + [1000]])
def test_every_pair_has_its_due_at_any_time(sizes, temperature):
    probabilities = sampling_probabilities(sizes, temperature)
    total = sum(sizes)
    counts = [quotas(sizes, temperature, total, n) for n in range(40)]
    for n, (before, after) in enumerate(itertools.pairwise(counts)):
        assert sum(before) == n * total
        assert np.all(np.abs(before - n * total * probabilities) < 1 + 1e-6)
        assert all(a >= b for a, b in zip(after, before, strict=True))


def test_at_temperature_one_a_block_is_an_epoch():
    assert quotas(SIZES, 1, sum(SIZES), 7) == [7 * size for size in SIZES]


@pytest.mark.parametrize("temperature", [0.99, 0, -5, math.nan])
def test_temperatures_below_one_are_refused(temperature):
    with pytest.raises(ValueError, match=rf"temperature.*\b1\b.* {temperature}\b"):
        sampling_probabilities([1, 2], temperature)
