"""Problems that a user can cause in a translation input, each with its message."""

import pytest

from lingvo_pipe.input.text.text_file_pairs import ParallelFiles
from tests.input.text.read_batches import take
from tests.input.text.small_texts import files_of, translation_input, write_texts


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_texts(tmp_path_factory.mktemp("texts"))


def test_a_language_without_a_token_is_named(folder):
    data = [files_of("aa", "bb").Set(target_language="bbb")]
    with pytest.raises(ValueError, match="<2bbb>.*'bbb'.*'bb'"):
        translation_input(folder, data=data).TrainBatches()
    given = translation_input(folder, data=data, language_tokens=False)
    assert len(take(given.TrainBatches(), 1)) == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"vocab_size": 64_000}, r"vocab_size.*\b120\b.*/small\.vocab.*64,000"),
        ({"vocab_file": "smal.vocab"}, r"vocab_file.*'smal\.vocab'.*'small\.vocab'"),
        (
            {"data": [files_of("aa", "bb").Set(source_file="aa-b.aa")]},
            r"'aa-b\.aa'.*'aa-bb\.aa'",
        ),
    ],
)
def test_missing_data_are_named(folder, values, message):
    with pytest.raises(ValueError, match=message):
        translation_input(folder, **values).EvalBatches()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"batch_size": 0}, r"batch_size.*\b0\b.*TranslationInput"),
        ({"source_length": None}, "source_length.*None"),
        ({"source_length": 2}, r"^source_length.*\b2\b.*\b2\b"),
        ({"target_length": 1}, r"^target_length.*\b1\b.*\b1\b"),
        ({"vocab_size": True}, "vocab_size.*True"),
        ({"vocab_file": None}, "vocab_file.*None"),
        ({"random_seed": 2**64}, rf"random_seed.*2\*\*64.*{2**64}"),
        ({"temperature": 0.5}, r"temperature.*\b1\b.*\b0\.5"),
        ({"temperature": "5"}, r"temperature.*\b1\b.*'5'"),
        ({"data": []}, r"^data\b.*\[\].*TranslationInput"),
        ({"data": ["a.de"]}, r"^data\b.*\['a\.de'\]"),
        ({"data": [ParallelFiles.Params()]}, "source_language.*None.*ParallelFiles"),
    ],
)
def test_params_out_of_range_are_named(folder, values, message):
    with pytest.raises(ValueError, match=message):
        translation_input(folder, **values)


def test_rows_may_be_as_short_as_the_shortest_sentence(folder):
    lengths = {"source_length": 2, "target_length": 2, "language_tokens": False}
    translation_input(folder, **lengths)
    translation_input(folder, **lengths | {"source_length": 3, "language_tokens": True})


def test_steps_are_not_negative(folder):
    with pytest.raises(ValueError, match="start_step.*-1"):
        translation_input(folder).TrainBatches(-1)
