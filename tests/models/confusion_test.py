"""Counts of confused classes, against counting by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from lingvo_pipe.models.confusion import Confusion

NUM_CLASSES = 6


def _random(num_examples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    return tuple(random.integers(NUM_CLASSES, size=[2, num_examples]))


def _counted(num_examples: int, seed: int = 0) -> Confusion:
    confusion = Confusion(NUM_CLASSES)
    confusion.add(*_random(num_examples, seed))
    return confusion


def test_every_example_is_counted_once() -> None:
    labels, predicted = _random(200, 1)
    pairs = list(zip(labels.tolist(), predicted.tolist(), strict=True))
    whole, parts = Confusion(NUM_CLASSES), Confusion(NUM_CLASSES)
    whole.add(labels, predicted)
    for start in range(0, 200, 7):
        parts.add(labels[start : start + 7], predicted[start : start + 7])
    for i, j in itertools.product(range(NUM_CLASSES), repeat=2):
        assert whole.counts[i, j] == parts.counts[i, j] == pairs.count((i, j))


def _by_hand(confusion: Confusion, most: int) -> list[int]:
    """Pairs in the order of their counts, as long as there is room."""
    counts = confusion.counts
    pairs = sorted(
        itertools.combinations(range(NUM_CLASSES), 2),
        key=lambda pair: -(counts[pair] + counts[pair[::-1]]),
    )
    found: set[int] = set()
    for pair in pairs:
        if not counts[pair] + counts[pair[::-1]] or len(found | {*pair}) > most:
            break
        found |= {*pair}
    return sorted(found)


@pytest.mark.parametrize("num_examples", [0, 1, 3, 8, 200])
@pytest.mark.parametrize("most", [2, 3, 4, 5])
def test_those_most_confused_are_shown(num_examples: int, most: int) -> None:
    for seed in range(20):
        confusion = _counted(num_examples, seed)
        found = confusion.most_confused(most).tolist()
        assert found == _by_hand(confusion, most)
        assert len(found) <= most


@pytest.mark.parametrize("most", [NUM_CLASSES, 100])
def test_few_classes_are_all_shown(most: int) -> None:
    found = _counted(0).most_confused(most)
    assert found.tolist() == list(range(NUM_CLASSES))


def test_shares_are_of_all_examples_of_a_class() -> None:
    confusion = Confusion(3)
    confusion.add(np.array([0, 0, 0, 0, 2]), np.array([0, 1, 1, 2, 0]))
    assert confusion.shares(np.arange(3)).tolist() == [
        [0.25, 0.5, 0.25],
        [0.0, 0.0, 0.0],
        [1.0, 0.0, 0.0],
    ]
    assert confusion.shares(np.array([0, 2])).tolist() == [[0.25, 0.25], [1.0, 0.0]]
