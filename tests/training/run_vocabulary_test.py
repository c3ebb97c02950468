"""A run keeps its vocabulary, or is refused."""

import dataclasses

import pytest

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.training.run_vocabulary import (
    check_num_tokens,
    check_one_vocabulary,
    check_vocabulary,
    keep_vocabulary,
)


@dataclasses.dataclass
class Vocabulary:
    fingerprint: str
    path: str = "/data/small.vocab"
    size: int = 8_000


@dataclasses.dataclass
class Input:
    vocabulary: Vocabulary


def test_a_run_goes_on_with_its_vocabulary_wherever_it_lies(tmp_path):
    keep_vocabulary(tmp_path, Input(Vocabulary("0123abcd")))
    check_vocabulary(tmp_path, Input(Vocabulary("0123abcd")))
    check_vocabulary(tmp_path, Input(Vocabulary("0123abcd", "/elsewhere")))


def test_another_vocabulary_is_refused(tmp_path):
    keep_vocabulary(tmp_path, Input(Vocabulary("0123abcd", "/data/old.vocab")))
    message = (
        r"trained with 0123abcd \(/data/old.vocab\), and vocab_file is 4567abcd "
        r"\(/data/new.vocab\). Give it the file"
    )
    with pytest.raises(ValueError, match=message):
        check_vocabulary(tmp_path, Input(Vocabulary("4567abcd", "/data/new.vocab")))


def test_inputs_without_a_vocabulary_leave_no_trace(tmp_path):
    keep_vocabulary(tmp_path, object())
    check_vocabulary(tmp_path, object())
    assert not list(tmp_path.iterdir())


def test_a_run_that_kept_none_may_have_any(tmp_path):
    check_vocabulary(tmp_path, Input(Vocabulary("0123abcd")))


def test_a_test_under_another_vocabulary_is_refused():
    """Its tokens would be other words, and its loss a number all the same."""
    old, moved, new = (
        Input(Vocabulary(*each))
        for each in (("0123abcd",), ("0123abcd", "/elsewhere"), ("4567abcd",))
    )
    check_one_vocabulary(old, moved)
    check_one_vocabulary(object(), object())
    with pytest.raises(ValueError, match="is 0123abcd .* training, and 4567abcd .*"):
        check_one_vocabulary(old, new)
    with pytest.raises(ValueError, match="and none for the test. Give both the same"):
        check_one_vocabulary(old, object())


def layer(name, num_tokens=None):
    p = Params()
    p.Define("name", name, "")
    if num_tokens is not None:
        p.Define("num_tokens", num_tokens, "")
    return p


def test_a_layer_with_too_few_tokens_is_refused():
    """More may be there, such as to make them a multiple of a hundred."""
    data = Input(Vocabulary("0123abcd"))
    check_num_tokens([layer("a", 8_000), layer("b"), layer("c", 8_100)], data)
    few = [layer("a", 8_000), layer("b", 7_999)]
    check_num_tokens(few, object())
    with pytest.raises(ValueError, match="b has 7,999, and /data/small.vocab has 8,0"):
        check_num_tokens(few, data)
