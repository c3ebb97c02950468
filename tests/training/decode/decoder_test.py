"""Every sentence is translated once, in order, and padding is not."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from lingvo_pipe.core.errors import UserNumberError, UserTypeError
from lingvo_pipe.training.decode.decoder import (
    Decoder,
    Hypothesis,
    Translation,
    listed_texts,
)
from tests.support.errors import fails
from tests.training.decoder_examples import Letters, WordsInput, spelling_task
from tests.training.toy_run import make_task


def decoded(*words: str, weight: float = -0.5) -> list[Translation]:
    data = WordsInput(*words)
    return list(Decoder(spelling_task(weight), data.vocabulary)(data.DecodeBatches()))


@pytest.mark.parametrize("words", [("ab", "c", "xyz"), ("ab", "c", "xyz", "d")])
def test_each_sentence_is_translated_in_order(words: tuple[str, ...]) -> None:
    found = decoded(*words)
    assert [each.source for each in found] == list(words)
    assert [each.hypotheses[0].text for each in found] == list(words)
    assert [each.reference for each in found] == [word.upper() for word in words]
    assert [each.position for each in found] == list(range(len(words)))
    assert [each.source_language for each in found[:2]] == ["de", "zh_Hant"]
    assert {each.target_language for each in found} == {"en"}


def test_all_hypotheses_have_their_scores() -> None:
    (found,) = decoded("xyz")
    assert found.hypotheses == (Hypothesis("xyz", -0.5), Hypothesis("x", -1.0))


def test_scores_that_are_not_finite_are_refused() -> None:
    with fails(UserNumberError, path="score", got=-math.inf):
        decoded("xyz", weight=-math.inf)


def test_a_task_without_decode_is_refused() -> None:
    task: Any = make_task()
    with fails(path="task", got="ImageClassifier"):
        Decoder(task, Letters())


def test_texts_are_any_iterable_of_texts() -> None:
    for texts in (["a", "b"], ("a", "b"), np.array(["a", "b"]), iter("ab")):
        assert listed_texts(texts, "p") == ["a", "b"]
    assert listed_texts(np.array([""]), "p") == [""]
    for wrong in ("ab", b"ab", {"a": "b"}, ["a", 1], None, np.array("a")):
        with fails(UserTypeError, path="p"):
            listed_texts(wrong, "p")
    with fails(path="p[1]", got="\ud800"):
        listed_texts(["a", "\ud800"], "p")
