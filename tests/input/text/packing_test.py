"""Packing: nothing lost, nothing too long, little padding."""

import functools
import math

import numpy as np
import pytest

from lingvo_pipe.input.text.batch_plan import pack


def lengths_like(number, capacity, seed=0, ratio=1.0):
    """Lengths as of text: most near 20, some far longer; targets go with sources."""
    random = np.random.default_rng(seed)
    source = random.lognormal(3.0, 0.6, number)
    target = source * ratio * random.lognormal(0.0, 0.25, number)
    lengths = np.stack([source, target], 1).round().astype(int)
    return np.clip(lengths, 1, capacity)


def totals(rows, lengths):
    return np.array([lengths[row].sum(0) for row in rows])


def fewest_rows(lengths, capacity):
    """By trying every way; the first sentence that is left goes to any row."""

    @functools.cache
    def search(left, rows):
        if not left:
            return len(rows)
        (source, target), *others = left
        found = math.inf
        for row in {*rows, tuple(capacity)}:
            room = (row[0] - source, row[1] - target)
            if min(room) >= 0:
                rest = list(rows)
                if row in rest:
                    rest.remove(row)
                found = min(found, search(tuple(others), tuple(sorted([*rest, room]))))
        return found

    return search(tuple(map(tuple, lengths.tolist())), ())


@pytest.mark.parametrize("capacity", [(8, 8), (40, 32), (256, 256), (100, 1000)])
@pytest.mark.parametrize("number", [0, 1, 2, 50, 3000])
def test_every_sentence_is_in_one_row_and_fits(number, capacity):
    for seed in range(5):
        lengths = lengths_like(number, capacity, seed)
        rows = pack(lengths, capacity)
        assert sorted(sum(rows, [])) == list(range(number))
        assert all(row == sorted(row) for row in rows)
        assert all(rows)
        if rows:
            assert np.all(totals(rows, lengths) <= capacity)


@pytest.mark.parametrize(
    ("length", "ratio", "least"),
    [
        (64, 1.0, 0.96),
        (128, 1.0, 0.98),
        (256, 1.0, 0.98),
        (1024, 1.0, 0.98),
        (128, 0.7, 0.98),
        (128, 1.4, 0.98),
    ],
)
def test_rows_are_filled(length, ratio, least):
    capacity = (length, length)
    lengths = lengths_like(4096, capacity, ratio=ratio)
    rows = pack(lengths, capacity)
    # The fuller side of all rows together; no packing can have it above 1.
    filled = lengths.sum(0).max() / (len(rows) * length)
    assert least < filled <= 1.0


def test_pairs_of_either_direction_make_up_for_one_another():
    capacity = (128, 128)
    long_targets = lengths_like(2048, capacity, 0, 1.2)
    lengths = np.concatenate([long_targets, long_targets[:, ::-1]])
    rows = pack(lengths, capacity)
    assert lengths.sum(0).max() / (len(rows) * 128) > 0.95


def test_few_sentences_are_packed_almost_as_well_as_can_be():
    random = np.random.default_rng(1)
    more = 0
    for _ in range(60):
        lengths = random.integers(1, 9, (7, 2))
        needed, best = len(pack(lengths, (9, 9))), fewest_rows(lengths, (9, 9))
        assert best <= needed <= best + 1
        more += needed - best
    assert more < 20


def test_rows_of_shuffled_sentences_are_shuffled():
    lengths = lengths_like(4096, (128, 128))
    sizes = [len(row) for row in pack(lengths, (128, 128))]
    quarter = len(sizes) // 4
    means = [np.mean(sizes[n * quarter : (n + 1) * quarter]) for n in range(4)]
    assert max(means) < 1.15 * min(means)


def test_rows_never_change():
    # Other rows here would break every run that is resumed.
    lengths = np.array([[5, 4], [3, 3], [9, 7], [1, 2], [4, 6], [2, 2], [6, 5], [3, 1]])
    assert pack(lengths, (10, 10)) == [[0, 4], [2, 3], [1, 6], [5, 7]]
