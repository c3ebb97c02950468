"""A run keeps its vocabulary, or is refused."""

import dataclasses

import pytest

from lingvo_pipe.training.run_vocabulary import check_vocabulary, keep_vocabulary


@dataclasses.dataclass
class Vocabulary:
    fingerprint: str
    path: str = "/data/small.vocab"


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
