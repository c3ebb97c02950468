"""Draws: functions of a key, each number equally likely."""

import numpy as np
import pytest

from lingvo_pipe.input.cldr.phrase_kind import Draws


def test_the_numbers_are_the_same_everywhere():
    draws = Draws("de", "train", 0, 0)
    assert [draws.below(100) for _ in range(8)] == [79, 30, 91, 67, 71, 26, 50, 61]


@pytest.mark.parametrize("other", [("de", 4), ("es", 3), ("de", "3"), ("de", 3, 0)])
def test_another_key_draws_others(other):
    both = Draws("de", 3), Draws(*other)
    numbers, others = ([draws.below(1000) for _ in range(5)] for draws in both)
    assert numbers != others


def test_no_number_is_preferred():
    draws = Draws("dice")
    counts = np.bincount([draws.below(6) for _ in range(60_000)], minlength=6)
    assert len(counts) == 6
    # The standard deviation of each is 91.
    assert abs(counts - 10_000).max() < 450


def test_numbers_go_on_beyond_one_hash():
    draws = Draws("long")
    assert len({draws.below(2**64) for _ in range(1000)}) == 1000


def test_each_option_is_drawn():
    draws = Draws("options")
    assert {draws.one_of("abc") for _ in range(100)} == set("abc")
