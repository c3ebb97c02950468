"""A run with another vocabulary is rejected."""

import dataclasses

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.training.run.run_vocabulary import (
    check_num_tokens,
    check_one_vocabulary,
    check_vocabulary,
    write_vocabulary,
)
from tests.support.errors import fails


@dataclasses.dataclass
class Vocabulary:
    fingerprint: str
    path: str = "/data/small.vocab"
    size: int = 8_000


@dataclasses.dataclass
class Input:
    vocabulary: Vocabulary


def test_a_run_resumes_with_its_vocabulary_in_another_place(tmp_path):
    write_vocabulary(tmp_path, Input(Vocabulary("0123abcd")))
    check_vocabulary(tmp_path, Input(Vocabulary("0123abcd")))
    check_vocabulary(tmp_path, Input(Vocabulary("0123abcd", "/elsewhere")))


def test_another_vocabulary_is_rejected(tmp_path):
    write_vocabulary(tmp_path, Input(Vocabulary("0123abcd", "/data/old.vocab")))
    with fails(path="input.vocab_file", got="4567abcd (/data/new.vocab)"):
        check_vocabulary(tmp_path, Input(Vocabulary("4567abcd", "/data/new.vocab")))


def test_inputs_without_a_vocabulary_write_nothing(tmp_path):
    write_vocabulary(tmp_path, object())
    check_vocabulary(tmp_path, object())
    assert not list(tmp_path.iterdir())


def test_a_run_without_a_vocabulary_accepts_any(tmp_path):
    check_vocabulary(tmp_path, Input(Vocabulary("0123abcd")))


def test_a_test_with_another_vocabulary_is_rejected():
    """Its tokens would be other words, and nothing would fail."""
    old, moved, new = (
        Input(Vocabulary(*each))
        for each in (("0123abcd",), ("0123abcd", "/elsewhere"), ("4567abcd",))
    )
    check_one_vocabulary(old, moved)
    check_one_vocabulary(object(), object())
    for other in (new, object()):
        with fails(path="input.vocab_file"):
            check_one_vocabulary(old, other)


def layer(name, num_tokens=None):
    p = Params()
    p.Define("name", name, "")
    if num_tokens is not None:
        p.Define("num_tokens", num_tokens, "")
    return p


def test_a_layer_with_too_few_tokens_is_rejected():
    """There may be more, such as to round up to a multiple of 100."""
    data = Input(Vocabulary("0123abcd"))
    check_num_tokens([layer("a", 8_000), layer("b"), layer("c", 8_100)], data)
    few = [layer("a", 8_000), layer("b", 7_999)]
    check_num_tokens(few, object())
    with fails(path="b.num_tokens", got=7_999):
        check_num_tokens(few, data)
