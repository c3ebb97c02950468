"""Problems that a user can cause in a translation input, each with its message."""

import pytest

from lingvo_pipe.input.text.text_file_pairs import ParallelFiles
from tests.input.text.read_batches import take
from tests.input.text.small_texts import files_of, translation_input
from tests.support.errors import fails


def test_a_language_without_a_token_is_named(folder):
    data = [files_of("aa", "bb").Set(target_language="bbb")]
    with fails(path="target language", got="bbb"):
        translation_input(folder, data=data).TrainBatches()
    given = translation_input(folder, data=data, language_tokens=False)
    assert len(take(given.TrainBatches(), 1)) == 1


def test_several_target_languages_need_tokens(folder):
    given = translation_input(folder, language_tokens=False)
    for batches in (given.TrainBatches, given.EvalBatches, given.DecodeBatches):
        with fails(path="input.language_tokens", got=False):
            batches()


@pytest.mark.parametrize(
    ("values", "path", "got"),
    [
        ({"vocab_size": 64_000}, "input.vocab_size", 64_000),
        ({"vocab_file": "smal.vocab"}, "vocab_file", "smal.vocab"),
        (
            {"data": [files_of("aa", "bb").Set(source_file="aa-b.aa")]},
            "file of text",
            "aa-b.aa",
        ),
    ],
)
def test_missing_data_are_named(folder, values, path, got):
    with fails(path=path, got=got):
        translation_input(folder, **values).EvalBatches()


@pytest.mark.parametrize(
    ("name", "value", "path"),
    [
        ("batch_size", 0, "TranslationInput.batch_size"),
        ("source_length", None, "TranslationInput.source_length"),
        ("source_length", 2, "input.source_length"),
        ("target_length", 1, "input.target_length"),
        ("vocab_size", True, "TranslationInput.vocab_size"),
        ("vocab_file", None, "TranslationInput.vocab_file"),
        ("random_seed", 2**64, "TranslationInput.random_seed"),
        *[("temperature", x, "TranslationInput.temperature") for x in (0.99, "5")],
        ("data", [], "TranslationInput.data"),
        ("data", ["a.de"], "TranslationInput.data"),
        *[
            (name, "False", f"TranslationInput.{name}")
            for name in ("allow_left_out", "language_tokens", "packing", "shuffle")
        ],
    ],
)
def test_params_out_of_range_are_named(folder, name, value, path):
    with fails(path=path, got=value):
        translation_input(folder, **{name: value})


def test_params_of_data_sets_are_checked(folder):
    with fails():
        translation_input(folder, data=[ParallelFiles.Params()])


def test_rows_may_be_as_short_as_the_shortest_sentence(folder):
    lengths = {"source_length": 2, "target_length": 2, "language_tokens": False}
    translation_input(folder, **lengths)
    translation_input(folder, **lengths | {"source_length": 3, "language_tokens": True})


def test_steps_are_not_negative(folder):
    with fails(path="start_step", got=-1):
        translation_input(folder).TrainBatches(-1)
