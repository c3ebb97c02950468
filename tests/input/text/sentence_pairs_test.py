"""Several sources in one."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams import Params
from lingvo_pipe.input.text.sentence_pairs import (
    JoinedPairs,
    SentencePairs,
    known_targets,
)


class Numbers:
    """Sentences that tell where they are from."""

    def __init__(self, name, number):
        self._name, self.num_sentences = name, number

    def Fetch(self, numbers):
        texts = [f"{self._name} {n}".encode() for n in numbers]
        return SentencePairs(*(np.array(texts, object) for _ in range(4)))

    def Where(self, number):
        return f"{self._name} {number}"


SOURCES = [Numbers("a", 3), Numbers("b", 1), Numbers("c", 0), Numbers("d", 2)]
EVERY = ["a 0", "a 1", "a 2", "b 0", "d 0", "d 1"]


@pytest.mark.parametrize("numbers", list(itertools.permutations(range(6), 3)))
def test_sources_come_one_after_the_other(numbers):
    joined = JoinedPairs(SOURCES)
    assert joined.num_sentences == 6
    for texts in joined.Fetch(np.array(numbers)):
        assert [text.decode() for text in texts] == [EVERY[n] for n in numbers]
    assert [joined.Where(n) for n in numbers] == [EVERY[n] for n in numbers]


def test_params_or_the_data_set_name_the_target_languages():
    def unknown(data_dir):
        raise UserValueError(path="dataset", expected="another", got=data_dir)

    p, plain = Params(), SimpleNamespace()
    p.Define("target_language", "de", "")
    assert known_targets(plain, p, None) == ["de"]
    for method, languages in ((lambda x: (x, "en"), ["data", "en"]), (unknown, None)):
        data = SimpleNamespace(TargetLanguages=method)
        assert known_targets(data, Params(), "data") == languages
    assert known_targets(plain, Params(), None) is None
