"""Models of the shipped sentences: rows, vocabularies and data fit."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

import model_registry
from lingvo_pipe.input.cldr.language import EIGHT, ENGLISH, LANGUAGES
from lingvo_pipe.input.cldr.sentences import draw_sentence
from lingvo_pipe.input.embedded.cldr_sentences import CldrSentences
from tests.support.errors import fails

TRANSLATING = {
    "mt.cldr.TransformerTiny": EIGHT,
    "mt.cldr.TransformerSmall": EIGHT,
    "mt.cldr.TransformerTiny102": tuple(LANGUAGES),
}


def _params(name: str) -> Any:
    return model_registry.GetParams(name, "Train")


@pytest.mark.parametrize("name", TRANSLATING)
def test_they_translate_to_english(name: str) -> None:
    (data,) = _params(name).input.data
    _, _, config = data.dataset.partition("/")
    config = CldrSentences.builder_configs[config]
    assert config.to_english
    assert _params(name).input.Instantiate().TargetLanguages() == [ENGLISH]
    assert config.languages == TRANSLATING[name]


@pytest.mark.parametrize("name", ["mt.cldr.TransformerTiny102"])
def test_sentences_fit_into_rows(name: str) -> None:
    """Longer sentences would be dropped."""
    given = _params(name).input.Instantiate()
    assert given.vocabulary.languages == [ENGLISH, *LANGUAGES]
    for language in LANGUAGES:
        drawn = [draw_sentence(language, "test", index) for index in range(8)]
        texts = [each.text(to) for each in drawn for to in (language, ENGLISH)]
        lengths = given.vocabulary.Tokenize(tf.constant(texts)).row_lengths()
        assert int(tf.reduce_max(lengths)) + 2 <= given.params.source_length


def test_the_default_text_of_the_language_model_is_read() -> None:
    for dataset, num_lines in (("Train", 10_000), ("Test", 1_000)):
        params = model_registry.GetParams("lm.text.TransformerTiny", dataset).input
        given = params.Instantiate()
        batch = next(iter(given.EvalBatches()))
        assert batch.weights.shape == [params.batch_size, params.length]
        assert float(tf.reduce_mean(batch.weights)) == 1.0
        (file,) = params.files
        with open(file, encoding="utf-8") as lines:
            assert sum(1 for _ in lines) == num_lines


def test_the_vocabulary_is_the_models() -> None:
    for name in (*TRANSLATING, "lm.text.TransformerTiny"):
        params = _params(name)
        size = params.input.Instantiate().vocabulary.size
        sizes = {
            p.num_tokens for p in params.task.pipeline.cell_tpl if "num_tokens" in p
        }
        assert sizes == {size}


def test_a_name_for_a_list_of_files_is_refused() -> None:
    cls = model_registry.GetClass("lm.text.TransformerTiny")
    own = type("Own", (cls,), {"TRAIN_FILES": "novel.txt"})
    with fails(path="LanguageModelInput.files", got="novel.txt"):
        own().Train().Instantiate()
    params = cls().Train()
    assert isinstance(params.files, list)
