"""Counting tokens: as the vocabulary does; and what can't be used is counted too."""

import logging

import numpy as np
import pytest
import tensorflow as tf
from absl import logging as absl_logging

from lingvo_pipe.input.text import measured_pairs
from lingvo_pipe.input.text.measured_pairs import measure
from lingvo_pipe.input.text.sentence_pairs import SentencePairs
from lingvo_pipe.input.text.vocabulary import Vocabulary
from tests.input.text.small_texts import vocabulary_file

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


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "small.vocab"
    path.write_bytes(vocabulary_file())
    return Vocabulary(str(path))


@pytest.fixture
def logged(monkeypatch):
    lines: list[str] = []
    monkeypatch.setattr(
        absl_logging, "warning", lambda text, *args: lines.append(text % args)
    )
    return lines


@pytest.mark.parametrize("chunk", [1, 4, 1024])
def test_tokens_and_pairs_are_those_of_the_sentences(vocabulary, monkeypatch, chunk):
    monkeypatch.setattr(measured_pairs, "_CHUNK_SIZE", chunk)
    measured = measure(Rows(), vocabulary)
    assert measured.names() == ["aa-bb", "bb-aa"]
    np.testing.assert_array_equal(measured.pair_of, [0, 0, 1, 0, 1, 0])
    for row, counts in zip(ROWS, measured.num_tokens, strict=True):
        tokens = vocabulary.Tokenize(tf.constant(row[:2])).to_list()
        assert counts.tolist() == [len(found) for found in tokens]


def test_what_is_left_out_is_counted_by_pair(vocabulary, logged):
    measured = measure(Rows(), vocabulary)
    assert measured.num_tokens[0, 0] > 4
    np.testing.assert_array_equal(measured.fitting((4, 4), True), [1, 2, 5])
    (line,) = logged
    assert line == (
        "Sentences are left out: aa-bb: 1 too long and 1 empty of 4; bb-aa: 0 too long "
        "and 1 empty of 2. The first is row 0."
    )


def test_what_is_not_looked_at_may_be_anything(vocabulary, logged):
    measured = measure(Rows(), vocabulary)
    np.testing.assert_array_equal(measured.fitting((99, None), True), range(6))
    np.testing.assert_array_equal(measured.fitting((None, 99), True), [0, 1, 2, 5])
    assert len(logged) == 1


def test_nothing_is_said_where_all_fit(vocabulary, logged):
    measured = measure(Rows([ROWS[1], ROWS[2]]), vocabulary)
    np.testing.assert_array_equal(measured.fitting((9, 9), False), [0, 1])
    assert not logged


def test_it_is_an_error_if_that_is_asked_for(vocabulary):
    measured = measure(Rows(), vocabulary)
    with pytest.raises(ValueError, match="allow_left_out is False; aa-bb: 1 too long"):
        measured.fitting((4, 4), False)


def test_a_pair_of_which_nothing_is_left_is_an_error(vocabulary, logged):
    measured = measure(Rows([*ROWS[:2], ROWS[4]]), vocabulary)
    with pytest.raises(ValueError, match=r"1 to \(9, 9\) tokens .*; bb-aa have none"):
        measured.fitting((9, 9), True)


def test_no_sentences_are_an_error(vocabulary):
    with pytest.raises(ValueError, match="there are none"):
        measure(Rows([]), vocabulary)


def test_the_log_is_one_that_users_see():
    assert absl_logging.get_absl_logger().isEnabledFor(logging.WARNING)
