"""The vocabulary: from texts to tokens and back, in the graph.

A vocabulary is a file of SentencePiece (Kudo and Richardson, 1808.06226), which holds
all there is to it: how texts are normalised, its tokens and their scores. `<2de>` is
the token that asks for German: it stands before the source of a translation (Johnson
et al., 1611.04558).

Shapes: K texts, V tokens in the vocabulary, B rows of T tokens.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

import sentencepiece
import tensorflow as tf
import tensorflow_text

from lingvo_pipe.hyperparams.suggest import did_you_mean
from lingvo_pipe.input.text.data_path import data_path

# The ids of vocabularies made here. The padding's is 0, as in all of TensorFlow.
PAD_ID, UNK_ID, BOS_ID, EOS_ID = range(4)

_LANGUAGE_TOKEN = re.compile("<2(.+)>")
_HOW = (
    "lingvo_pipe_train_vocab makes one, or in the repository tools/bazel run "
    "//tools:train_vocab."
)


def language_token(language: str) -> str:
    """Returns the token that asks for a translation into a language."""
    return f"<2{language}>"


def open_vocabulary(
    vocab_file: str, data_dir: str | None, vocab_size: int
) -> Vocabulary:
    """Returns the vocabulary that an input's params name.

    Args:
        vocab_file: The file; relative names begin at `data_dir`.
        data_dir: As of `data_path`.
        vocab_size: V of the model.

    Raises:
        ValueError: If the file is missing, no vocabulary, or one of another size.
    """
    vocabulary = Vocabulary(data_path(vocab_file, data_dir, "vocab_file", _HOW))
    if vocabulary.size != vocab_size:
        raise ValueError(
            "vocab_size must be the number of tokens in vocab_file, and the model's "
            f"num_tokens likewise; got {vocab_size:,}, and {vocabulary.path} has "
            f"{vocabulary.size:,}. Set both, or make a vocabulary of that size."
        )
    return vocabulary


class Vocabulary:
    """A vocabulary of V tokens.

    Args:
        path: The file.

    Raises:
        ValueError: If the file is no vocabulary, or one without a token for padding,
            the unknown, the beginning or the end.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        model = Path(path).read_bytes()
        self._processor = _load(path, model)
        self._tokenizer = tensorflow_text.SentencepieceTokenizer(
            model=model, out_type=tf.int32
        )
        self._fingerprint = hashlib.sha256(model).hexdigest()[:16]

    @property
    def size(self) -> int:
        """V."""
        return self._processor.get_piece_size()

    @property
    def pad_id(self) -> int:
        """The token where there is none."""
        return self._processor.pad_id()

    @property
    def unk_id(self) -> int:
        """The token of what has no other."""
        return self._processor.unk_id()

    @property
    def bos_id(self) -> int:
        """The token that a target begins after."""
        return self._processor.bos_id()

    @property
    def eos_id(self) -> int:
        """The token that ends a text."""
        return self._processor.eos_id()

    @property
    def fingerprint(self) -> str:
        """Sixteen letters that tell the file from every other; a checksum."""
        return self._fingerprint

    @property
    def languages(self) -> list[str]:
        """The languages that have a token, in the order of their tokens."""
        tokens = map(self._processor.id_to_piece, range(self.size))
        return [found[1] for found in map(_LANGUAGE_TOKEN.fullmatch, tokens) if found]

    def LanguageIds(self, languages: Sequence[str]) -> list[int]:
        """Returns the token of each language.

        Raises:
            ValueError: If a language has none.
        """
        known = self.languages
        for language in languages:
            if language not in known:
                raise ValueError(
                    "A vocabulary must have a token for each language to translate "
                    f"to; {self.path} has none, {language_token(language)}, for "
                    f"{language!r}.{did_you_mean(language, known)} It has "
                    f"{', '.join(known) or 'no languages'}. Make one with all of them, "
                    "or set language_tokens=False for a model of one direction."
                )
        return [self._processor.piece_to_id(language_token(x)) for x in languages]

    def Tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Returns the tokens of each text, without beginning and end.

        Args:
            texts: string [K], in UTF-8.

        Returns:
            int32 [K, (tokens)].
        """
        return self._tokenizer.tokenize(texts)

    def Detokenize(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the text of each row, up to the first token that ends one.

        Args:
            ids: int32 [B, T].

        Returns:
            string [B]. Tokens of padding and beginning leave no trace.
        """
        is_end = tf.cast(tf.equal(ids, self.eos_id), tf.int32)
        before_end = tf.equal(tf.cumsum(is_end, axis=1), 0)
        return self._tokenizer.detokenize(tf.ragged.boolean_mask(ids, before_end))


def _load(path: str, model: bytes) -> sentencepiece.SentencePieceProcessor:
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    except RuntimeError as error:
        raise ValueError(
            f"A vocabulary must be a file of SentencePiece; {path} is none. {_HOW}"
        ) from error
    ids = {
        "pad": processor.pad_id(),
        "unk": processor.unk_id(),
        "bos": processor.bos_id(),
        "eos": processor.eos_id(),
    }
    missing = [name for name, number in ids.items() if number < 0]
    if missing:
        raise ValueError(
            f"A vocabulary must have tokens for {', '.join(ids)}; {path} has none for "
            f"{', '.join(missing)}. {_HOW}"
        )
    return processor
