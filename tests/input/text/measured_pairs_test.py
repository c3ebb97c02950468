"""Counting tokens: as the vocabulary does; and what can't be used is counted too."""

import logging
import re

import numpy as np
import pytest
import tensorflow as tf
from absl import logging as absl_logging

from lingvo_pipe.input.text import measured_pairs
from lingvo_pipe.input.text.measured_pairs import RowLimit, measure
from lingvo_pipe.input.text.sentence_pairs import SentencePairs
from tests.support.errors import fails

ROWS = [
    ("ab ab ab ab ab ab", "fg", "aa", "bb"),
    ("a", "fg", "aa", "bb"),
    ("fg", "a", "bb", "aa"),
    ("a", "", "aa", "bb"),
    ("fg", "\u200b ", "bb", "aa"),
    ("d", "g", "aa", "bb"),
]


class Rows:
    """The rows above, or others."""

    def __init__(self, rows=ROWS):
        self._rows, self.num_sentences = rows, len(rows)

    def Fetch(self, numbers):
        chosen = [[text.encode() for text in self._rows[n]] for n in numbers]
        return SentencePairs(*np.array(chosen, object).T)

    def Where(self, number):
        return f"row {number}"


@pytest.mark.parametrize("chunk", [1, 4, 1024])
def test_tokens_and_pairs_are_those_of_the_sentences(vocabulary, monkeypatch, chunk):
    monkeypatch.setattr(measured_pairs, "_CHUNK_SIZE", chunk)
    measured = measure(Rows(), vocabulary)
    assert measured.names() == ["aa-bb", "bb-aa"]
    np.testing.assert_array_equal(measured.pair_of, [0, 0, 1, 0, 1, 0])
    for row, counts in zip(ROWS, measured.num_tokens, strict=True):
        tokens = vocabulary.Tokenize(tf.constant(row[:2])).to_list()
        assert counts.tolist() == [len(found) for found in tokens]


def limit(most, added=1, name="source_length"):
    return RowLimit(name, most + added, added)


def test_what_is_left_out_is_counted_by_pair(vocabulary, logged):
    measured = measure(Rows(), vocabulary)
    longest = measured.num_tokens[0, 0]
    assert longest > 4
    limits = limit(4, 2), limit(4, 1, "target_length")
    np.testing.assert_array_equal(measured.fitting(*limits, True), [1, 2, 5])
    (line,) = logged
    assert re.search(
        r"source_length\W+6\b.*target_length\W+5\b.*\b1\D+4\D+aa-bb\D+1\D+0\D+2\D+"
        rf"bb-aa\D+1\D+row 0\b.*source_length\W+{longest + 2}\b.*allow_left_out=False",
        line,
    )


def test_what_is_not_looked_at_may_be_anything(vocabulary, logged):
    measured = measure(Rows(), vocabulary)
    np.testing.assert_array_equal(measured.fitting(limit(99), None, True), range(6))
    assert not logged
    fitting = measured.fitting(limit(99), limit(99), True)
    np.testing.assert_array_equal(fitting, [0, 1, 2, 5])
    (line,) = logged
    assert re.search(r"\brow 3\b.*empty", line)


def test_what_fits_needs_no_more_than_there_is(vocabulary, logged):
    """Each limit by itself, to the token."""
    texts = ("ab ab ab ab", "d"), ("a", "fg fg fg fg"), ("d", "g")
    measured = measure(Rows([(*each, "aa", "bb") for each in texts]), vocabulary)
    source, target = measured.num_tokens.max(0)
    fits = measured.fitting(limit(source), limit(target), False)
    np.testing.assert_array_equal(fits, range(3))
    for limits in ((source - 1, target), (source, target - 1)):
        wanted = np.flatnonzero((measured.num_tokens <= limits).all(1))
        assert len(wanted) < 3
        fits = measured.fitting(limit(limits[0]), limit(limits[1]), True)
        np.testing.assert_array_equal(fits, wanted)


def test_nothing_is_said_where_all_fit(vocabulary, logged):
    measured = measure(Rows([ROWS[1], ROWS[2]]), vocabulary)
    np.testing.assert_array_equal(measured.fitting(limit(9), limit(9), False), [0, 1])
    assert not logged


def test_it_is_an_error_if_that_is_asked_for(vocabulary):
    measured = measure(Rows(), vocabulary)
    with fails(path="input.data") as info:
        measured.fitting(limit(4), limit(4), False)
    assert info.value.got.startswith("1 of 4 sentences of aa-bb are too long, 1 empty")
    with fails(path="input.data") as info:
        measured.fitting(limit(1), limit(1, name="target_length"), False)
    assert re.search(r"source_length \d.* target_length \d", str(info.value))


def test_a_pair_of_which_nothing_is_left_is_an_error(vocabulary, logged):
    measured = measure(Rows([*ROWS[:2], ROWS[4]]), vocabulary)
    with fails(path="input.data", got="none of bb-aa"):
        measured.fitting(limit(9), limit(9, 1, "target_length"), True)


def test_pairs_that_the_vocabulary_cannot_write_are_told(vocabulary, logged):
    measure(Rows([*ROWS, ("щ щ", "g", "cc", "bb")]), vocabulary)
    (line,) = logged
    assert re.search(r"\d% of cc-bb\b", line)
    assert "aa-bb" not in line


def test_no_sentences_are_an_error(vocabulary):
    with fails(path="input.data"):
        measure(Rows([]), vocabulary)


def test_the_log_is_one_that_users_see():
    assert absl_logging.get_absl_logger().isEnabledFor(logging.WARNING)
