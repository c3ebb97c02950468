"""The vocabulary: texts and back, tokens of languages, files that are none."""

from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf

from lingvo_pipe.input.text.vocabulary import (
    Vocabulary,
    open_vocabulary,
    train_vocabulary,
)
from tests.input.text.small_texts import LANGUAGES, VOCAB_SIZE, sentences
from tests.support.errors import fails

TEXTS = [text for language in LANGUAGES for text in sentences(language, 30)]


@pytest.fixture(scope="module")
def path(folder):
    return str(folder / "small.vocab")


def test_ids_are_those_that_were_asked_for(vocabulary):
    ids = [vocabulary.pad_id, vocabulary.unk_id, vocabulary.bos_id, vocabulary.eos_id]
    assert ids == [0, 1, 2, 3]
    assert vocabulary.size == VOCAB_SIZE
    assert vocabulary.languages == LANGUAGES
    assert vocabulary.LanguageIds(["cc", "aa", "cc"]) == [6, 4, 6]


def test_the_graph_tokenizes_as_sentencepiece_does(vocabulary, path):
    processor = sentencepiece.SentencePieceProcessor(model_file=path)
    tokenize = tf.function(vocabulary.Tokenize)
    texts = [*TEXTS, "", "  ", "qqq 9"]
    assert tokenize(tf.constant(texts)).to_list() == processor.encode(texts)


def test_texts_come_back(vocabulary):
    tokens = vocabulary.Tokenize(tf.constant(TEXTS))
    end = tf.fill([tokens.nrows(), 1], vocabulary.eos_id)
    rest = tf.random.stateless_uniform(end.shape, (0, 1), 0, VOCAB_SIZE, tf.int32)
    ids = tf.concat([tokens, end, rest, end], 1).to_tensor(vocabulary.pad_id)
    texts = tf.function(vocabulary.Detokenize)(ids)
    assert [text.decode() for text in texts.numpy()] == TEXTS
    begun = tf.pad(ids[:, :-1], [[0, 0], [1, 0]], constant_values=vocabulary.bos_id)
    np.testing.assert_array_equal(vocabulary.Detokenize(begun), texts)


def test_a_fingerprint_is_that_of_the_file(vocabulary, path, tmp_path):
    assert Vocabulary(path).fingerprint == vocabulary.fingerprint
    assert len(vocabulary.fingerprint) == 16
    other = tmp_path / "other.vocab"
    other.write_bytes(train_vocabulary(TEXTS, VOCAB_SIZE - 1, LANGUAGES))
    assert Vocabulary(str(other)).fingerprint != vocabulary.fingerprint


def test_a_language_without_a_token_is_named(vocabulary):
    with fails(path="target language", got="bbb") as info:
        vocabulary.LanguageIds(["aa", "bbb"])
    assert "aa, bb, cc" in info.value.expected
    assert "'bb'" in info.value.hint


def test_another_size_is_named(path):
    assert open_vocabulary(path, None, VOCAB_SIZE).size == VOCAB_SIZE
    with fails(path="input.vocab_size", got=32_000):
        open_vocabulary(path, None, 32_000)


def test_how_a_missing_file_is_found_or_made_is_named(tmp_path):
    with fails(path="vocab_file", got="missing.vocab") as info:
        open_vocabulary("missing.vocab", None, VOCAB_SIZE)
    for words in ("data_dir, which is None; --data_dir", "lingvo_pipe vocab"):
        assert words in info.value.hint


def test_a_file_that_is_no_vocabulary_is_named(path, tmp_path):
    other = tmp_path / "x"
    for content in (b"no vocabulary", Path(path).read_bytes()[:-9]):
        other.write_bytes(content)
        with fails(path="vocab_file", got=str(other)):
            Vocabulary(str(other))


def test_a_vocabulary_without_padding_is_named(tmp_path):
    prefix = str(tmp_path / "plain")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_prefix=prefix, vocab_size=80, minloglevel=2
    )
    with fails(path="vocab_file", got=f"{prefix}.model without pad"):
        Vocabulary(f"{prefix}.model")
