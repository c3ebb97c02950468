"""Making vocabularies: the same one each time, or an error that says why not."""

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import sentencepiece
import tensorflow as tf

import lingvo_pipe
from lingvo_pipe.input.text.vocabulary import Vocabulary, train_vocabulary
from tests.input.text.small_texts import LANGUAGES, sentences, vocabulary_file
from tests.support.errors import fails

ROOT = Path(lingvo_pipe.__file__).parents[1]
TEXTS = sentences("aa", 200)

_PRINT_CHECKSUM = """
import hashlib
from tests.input.text.small_texts import vocabulary_file
print(hashlib.sha256(vocabulary_file()).hexdigest())
"""


def load(model):
    return sentencepiece.SentencePieceProcessor(model_proto=model)


def test_the_same_texts_give_the_same_bytes():
    assert train_vocabulary(TEXTS, 60) == train_vocabulary(iter(TEXTS), 60)
    assert train_vocabulary(TEXTS, 60) != train_vocabulary(TEXTS[:150], 60)


@pytest.mark.exhaustive
def test_another_process_with_one_processor_makes_the_same_bytes():
    command = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"
    printed = subprocess.run(
        [sys.executable, "-B", "-c", command + _PRINT_CHECKSUM],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "-1"},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    assert printed.strip() == hashlib.sha256(vocabulary_file()).hexdigest()


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_it_has_the_size_and_the_languages_asked_for(model_type):
    made = load(train_vocabulary(TEXTS, 50, LANGUAGES, model_type))
    assert made.get_piece_size() == 50
    tokens = [made.id_to_piece(n) for n in range(7)]
    assert tokens == ["<pad>", "<unk>", "<s>", "</s>", "<2aa>", "<2bb>", "<2cc>"]


def test_texts_may_stay_as_they_are(tmp_path):
    texts = [f"{text}\u00a0½ ﬁ" for text in TEXTS]
    one, other = TEXTS[:2]
    read = [texts[0], f"  {one}  {other} ", f"{one}\n\n {other}\n"]
    for normalization, are_kept in (
        ("none", [True, True, True]),
        ("identity", [True, False, False]),
        ("nmt_nfkc", [False, False, False]),
    ):
        path = tmp_path / normalization
        path.write_bytes(
            train_vocabulary(texts, 50, LANGUAGES, "bpe", 1, normalization)
        )
        made = Vocabulary(str(path))
        tokens = made.Tokenize(tf.constant(read))
        if normalization == "none":
            assert tf.reduce_all(made.NumUnknown(tokens) == 0)
        again = made.Detokenize(tokens.to_tensor(made.eos_id)).numpy()
        assert [x.decode() == y for x, y in zip(again, read, strict=True)] == are_kept


def test_digits_may_be_apart():
    texts = [f"{text} 1234" for text in TEXTS]
    for split in (False, True):
        made = load(train_vocabulary(texts, 50, split_digits=split))
        assert ("4" in made.encode("1234", out_type=str)) == split


def test_rare_characters_may_be_left_out():
    texts = [*TEXTS, "語"]
    every = load(train_vocabulary(texts, 60, character_coverage=1.0))
    most = load(train_vocabulary(texts, 60, character_coverage=0.99))
    assert every.unk_id() not in every.encode("語")
    assert most.unk_id() in most.encode("語")


@pytest.mark.parametrize(
    ("texts", "size", "path", "got"),
    [
        (TEXTS, 0, "vocab_size", 0),
        ([], 50, "vocab_size", 50),
        (["x" * 2_000_000], 50, "text 1", 2_000_000),
    ],
)
def test_what_can_not_be_made_is_named(texts, size, path, got):
    with fails(path=path, got=got):
        train_vocabulary(texts, size, LANGUAGES)


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
@pytest.mark.parametrize("size", [100_000, 8])
def test_the_limit_that_is_told_is_that_of_the_texts(model_type, size):
    with fails(path="vocab_size", got=size) as info:
        train_vocabulary(TEXTS[:20], size, LANGUAGES, model_type)
    told = int(re.findall(r"\d+", info.value.expected)[0])
    made = train_vocabulary(TEXTS[:20], told, LANGUAGES, model_type)
    assert load(made).get_piece_size() == told
    beyond = told + 1 if size > told else told - 1
    with fails(expected=info.value.expected, got=beyond):
        train_vocabulary(TEXTS[:20], beyond, LANGUAGES, model_type)


@pytest.mark.parametrize("coverage", [0.5, 1.1])
def test_a_coverage_that_none_has_is_named(coverage):
    with fails(path="character_coverage", got=coverage):
        train_vocabulary(TEXTS, 50, character_coverage=coverage)


def test_an_unknown_normalization_is_named():
    with fails() as info:
        train_vocabulary(TEXTS, 50, normalization="nope")
    assert "nope" in info.value.hint
