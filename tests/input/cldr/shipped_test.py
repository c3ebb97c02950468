"""The files that come with the project, as they are used."""

from pathlib import Path

import pytest
import tensorflow as tf

from lingvo_pipe.input.cldr.language import EIGHT, ENGLISH, LANGUAGES
from lingvo_pipe.input.cldr.sentences import draw_sentence
from lingvo_pipe.input.cldr.shipped import (
    ALL_VOCABULARY,
    EIGHT_VOCABULARY,
    ENGLISH_VOCABULARY,
    TEXTS,
    VOCABULARY_SIZES,
    shipped_file,
)
from lingvo_pipe.input.text.vocabulary import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    UNK_ID,
    Vocabulary,
)

SPOKEN = {
    ENGLISH_VOCABULARY: (ENGLISH,),
    EIGHT_VOCABULARY: (ENGLISH, *EIGHT),
    ALL_VOCABULARY: (ENGLISH, *LANGUAGES),
}


@pytest.fixture(scope="module", params=list(VOCABULARY_SIZES))
def name(request):
    return request.param


@pytest.fixture(scope="module")
def vocabulary(name):
    return Vocabulary(shipped_file(name))


def sentences(languages, split, num_sentences):
    return [
        draw_sentence(language, split, index).text(language)
        for language in languages
        for index in range(num_sentences)
    ]


def test_they_are_small():
    for name in (*VOCABULARY_SIZES, *TEXTS.values()):
        assert 10_000 < Path(shipped_file(name)).stat().st_size < 1_000_000


def test_vocabularies_have_the_usual_ids(name, vocabulary):
    assert vocabulary.size == VOCABULARY_SIZES[name]
    ids = (vocabulary.pad_id, vocabulary.unk_id, vocabulary.bos_id, vocabulary.eos_id)
    assert ids == (PAD_ID, UNK_ID, BOS_ID, EOS_ID)


def test_vocabularies_have_a_token_for_each_language(name, vocabulary):
    expected = [] if name == ENGLISH_VOCABULARY else list(SPOKEN[name])
    assert vocabulary.languages == expected


@pytest.mark.exhaustive
def test_hardly_a_sentence_has_characters_without_a_token(name, vocabulary):
    texts = sentences(SPOKEN[name], "test", 40)
    ids = vocabulary.Tokenize(tf.constant(texts))
    has_unknown = tf.reduce_any(ids == vocabulary.unk_id, axis=1)
    assert tf.reduce_mean(tf.cast(has_unknown, tf.float32)) <= 0.002


def test_tokens_are_the_text(name, vocabulary):
    texts = sentences(SPOKEN[name], "train", 40)
    ids = vocabulary.Tokenize(tf.constant(texts))
    again = [text.decode() for text in vocabulary.Detokenize(ids.to_tensor()).numpy()]
    assert again == texts


def test_each_digit_is_a_token(vocabulary):
    (few,), (many,) = (
        vocabulary.Tokenize(tf.constant([text])).row_lengths().numpy()
        for text in ("in 1 days", "in 1234567 days")
    )
    assert many == few + 6


def test_no_line_of_the_test_is_one_of_training():
    train, test = (
        set(Path(shipped_file(name)).read_text(encoding="utf-8").split("\n"))
        for name in TEXTS.values()
    )
    assert train & test == {""}
