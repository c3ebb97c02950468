"""Mistakes in the params of TranslationInput, or in what they name, are told."""

import pytest

from lingvo_pipe.input.text.text_file_pairs import ParallelFiles
from tests.input.text.read_batches import take
from tests.input.text.small_texts import files_of, translation_input, write_texts


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_texts(tmp_path_factory.mktemp("texts"))


def test_a_language_without_a_token_is_told(folder):
    data = [files_of("aa", "bb").Set(target_language="bbb")]
    with pytest.raises(ValueError, match="<2bbb>, for 'bbb'. Did you mean 'bb'"):
        translation_input(folder, data=data).TrainBatches()
    given = translation_input(folder, data=data, language_tokens=False)
    assert len(take(given.TrainBatches(), 1)) == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"vocab_size": 64_000}, "got 64,000, and .*small.vocab has 120. Set both"),
        ({"vocab_file": "smal.vocab"}, "Did you mean 'small.vocab'"),
        ({"data": [files_of("aa", "bb").Set(source_file="aa-b.aa")]}, "Did you mean"),
    ],
)
def test_what_is_not_there_is_told(folder, values, message):
    with pytest.raises(ValueError, match=message):
        translation_input(folder, **values).EvalBatches()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"batch_size": 0}, "batch_size must be a positive int; got 0. Set them in"),
        ({"source_length": None}, "source_length must be a positive int; got None"),
        ({"source_length": 2}, "^source_length must have room .* and 2 more, .* got 2"),
        ({"target_length": 1}, "^target_length must have room .* and 1 more, .* got 1"),
        ({"vocab_size": True}, "vocab_size must be a positive int; got True"),
        ({"vocab_file": None}, "vocab_file must be a file's name; got None"),
        ({"random_seed": 2**64}, "random_seed must be an int from 0 to 2"),
        ({"temperature": 0.5}, "temperature must be at least 1"),
        ({"temperature": "5"}, "temperature must be at least 1, .* got '5'"),
        ({"data": []}, r"data must be a list of params .* got \[\]. Set it in"),
        ({"data": ["a.de"]}, "data must be a list of params of data sets"),
        ({"data": [ParallelFiles.Params()]}, "source_language and .* must be names"),
    ],
)
def test_params_out_of_range_are_told(folder, values, message):
    with pytest.raises(ValueError, match=message):
        translation_input(folder, **values)


def test_rows_may_be_as_short_as_the_shortest_sentence(folder):
    lengths = {"source_length": 2, "target_length": 2, "language_tokens": False}
    translation_input(folder, **lengths)
    translation_input(folder, **lengths | {"source_length": 3, "language_tokens": True})


def test_steps_are_not_negative(folder):
    with pytest.raises(ValueError, match="start_step must not be negative; got -1"):
        translation_input(folder).TrainBatches(-1)
