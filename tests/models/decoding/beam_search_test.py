"""Beam search against exhaustive search and its definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.models.decoding.beam_search import (
    Hypotheses,
    beam_search,
    length_penalties,
)
from tests.models.decoding.score_tables import (
    EOS,
    beam_by_lists,
    every_sequence,
    found_of,
    random_table,
    search,
)
from tests.support.cases import pairwise_params
from tests.support.errors import fails

B, V, T = 6, 3, 4
MAX_LENGTHS = [4, 4, 3, 4, 2, 1]
KINDS = ["random", "tied", "barred"]
ALPHAS = [0.0, 0.6, 1.0, 2.5]


SIZES = [(1, 1), (2, 2), (3, 1), (5, 4), (30, 30)]


@pytest.mark.parametrize(
    *pairwise_params({"kind": KINDS, "alpha": ALPHAS, "size": SIZES})
)
def test_it_is_the_search_by_lists(
    kind: str, alpha: float, size: tuple[int, int]
) -> None:
    """They agree to the last bit, also among equals and after an early end."""
    width, num_found = size
    table = random_table(B, V, T, width, kind)
    sizes = {"max_length": T, "width": width, "num_hypotheses": num_found}
    found = search(table, MAX_LENGTHS, length_penalty=alpha, **sizes)
    for b, max_length in enumerate(MAX_LENGTHS):
        want = beam_by_lists(table[b], max_length, width, num_found, alpha)
        assert found_of(found, b) == want


@pytest.mark.parametrize(
    *pairwise_params(
        {"kind": KINDS, "alpha": ALPHAS, "dtype": [np.float32, np.float64]}
    )
)
def test_a_beam_with_room_for_all_finds_the_best(
    kind: str, alpha: float, dtype: Any
) -> None:
    """Prefixes of 3 tokens have 8 · 3 extensions, as many as 24 hypotheses."""
    table, width = random_table(B, V, T, 5, kind, dtype), 24
    sizes = {"max_length": T, "width": width, "num_hypotheses": width}
    found = search(table, MAX_LENGTHS, length_penalty=alpha, **sizes)
    for b, max_length in enumerate(MAX_LENGTHS):
        every = {tuple(x.ids): x for x in every_sequence(table[b], max_length, alpha)}
        got = found_of(found, b)
        scores = sorted((each.score for each in every.values()), reverse=True)
        assert [each.score for each in got] == scores[:width]
        assert all(every[tuple(each.ids)] == each for each in got)
        assert len({tuple(each.ids) for each in got}) == len(got)


@pytest.mark.parametrize("kind", KINDS)
def test_one_hypothesis_is_greedy(kind: str) -> None:
    """The penalty, which matters only between lengths, has no effect."""
    table = random_table(B, V, T, 8, kind)
    for alpha in ALPHAS:
        found = search(table, MAX_LENGTHS, max_length=T, width=1, length_penalty=alpha)
        for b, max_length in enumerate(MAX_LENGTHS):
            ids: list[int] = []
            node = 0
            while EOS not in ids:
                is_last = len(ids) == max_length - 1
                ids.append(EOS if is_last else int(table[b, node].argmax()))
                node = node * V + 1 + ids[-1]
            assert [each.ids for each in found_of(found, b)] == [ids]


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_its_examples_one_by_one(kind: str) -> None:
    table = random_table(B, V, T, 3, kind)
    arguments = {"max_length": T, "width": 3, "num_hypotheses": 2}
    together = search(table, MAX_LENGTHS, length_penalty=0.6, **arguments)
    alone = [
        search(table[b : b + 1], [n], length_penalty=0.6, **arguments)
        for b, n in enumerate(MAX_LENGTHS)
    ]
    for values, parts in zip(together, zip(*alone, strict=True), strict=True):
        np.testing.assert_array_equal(values, np.concatenate(parts))


def table_of(*end_log_probs: float) -> np.ndarray:
    """Log probabilities of the end by number of words before; of words they are -1."""
    table = np.full([1, 364, 3], -1.0, np.float32)
    level = 0
    for t, log_prob in enumerate(end_log_probs):
        table[:, level : level + 3**t, EOS] = log_prob
        level += 3**t
    return table


@pytest.mark.parametrize(
    ("alpha", "num_steps"),
    [
        # The ended one has -0.5. Open ones have -1 after one token, and fall.
        (0.0, 1),
        # With the penalty of six tokens -1 is -1/(11/6) = -0.545.
        (1.0, 1),
        # -1/(11/6)² = -0.298, so they must continue. With -2 they have -0.595.
        (2.0, 2),
    ],
)
def test_it_ends_when_nothing_can_win(alpha: float, num_steps: int) -> None:
    table = table_of(-0.5, -9, -9, -9, -9, -9)
    counted = tf.Variable(0)
    found = search(table, [6], counted, max_length=6, width=2, length_penalty=alpha)
    assert found.lengths.tolist() == [[1]]
    assert int(counted) == num_steps


def test_longer_ones_may_win_late() -> None:
    """-1 after one token, -1.25 after six, which is divided by 11/6."""
    table = table_of(-1, -9, -9, -9, -9, 0)
    table[table == -1.0] = -0.25
    table[0, 0, EOS] = -1.0
    for alpha, length in {0.0: 1, 1.0: 6}.items():
        found = search(table, [6], max_length=6, width=3, length_penalty=alpha)
        assert found.lengths.tolist() == [[length]]


def test_where_there_are_fewer_the_rest_is_empty() -> None:
    table = random_table(2, V, T, 1)
    arguments = {"max_length": T, "width": 5, "num_hypotheses": 5}
    found = search(table, [1, 2], **arguments)
    assert isinstance(found, Hypotheses)
    assert np.count_nonzero(found.lengths, 1).tolist() == [1, 3]
    assert np.all(np.diff(found.scores[1, :3]) <= 0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("width", 0), ("width", 1.5)],
        *[("num_hypotheses", 3), ("num_hypotheses", 0)],
        *[("length_penalty", x) for x in (-0.1, float("nan"), float("inf"))],
    ],
)
def test_numbers_out_of_range_are_refused(name: str, value: Any) -> None:
    nothing: Any = None
    numbers: dict[str, Any] = {"max_length": T, "eos_id": EOS, "width": 2, name: value}
    with fails(path=name, got=value):
        beam_search(*[nothing] * 5, **numbers)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 3.0])
def test_the_penalty_is_gnmts(alpha: float) -> None:
    want = [(5 + n) ** alpha / (5 + 1) ** alpha for n in range(51)]
    got = length_penalties(alpha, 50)
    np.testing.assert_allclose(got, want, rtol=1e-14)
    assert got[1] == 1.0


def test_it_grows_with_the_length() -> None:
    assert np.all(np.diff(length_penalties(1e-3, 1000).astype(np.float32)) >= 0)
