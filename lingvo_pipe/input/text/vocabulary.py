"""The vocabulary: conversion of texts to tokens and back, in the graph.

A vocabulary is a SentencePiece file (Kudo and Richardson, 1808.06226) with the
normalization rule, the tokens and their scores. `<2de>` is the language token of
German; it precedes the source of a translation (Johnson et al., 1611.04558).

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

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.near_names import did_you_mean
from lingvo_pipe.input.text.text_files import data_path

# Ids of vocabularies made here. Padding is 0, as everywhere in TensorFlow.
PAD_ID, UNK_ID, BOS_ID, EOS_ID = range(4)

_LANGUAGE_TOKEN = re.compile("<2(.+)>")
_HINT = (
    "lingvo_pipe_train_vocab makes one, or in the repository tools/bazel run "
    "//tools:train_vocab."
)


def language_token(language: str) -> str:
    """Returns the token that precedes sources to translate into a language."""
    return f"<2{language}>"


def open_vocabulary(
    vocab_file: str, data_dir: str | None, vocab_size: int
) -> Vocabulary:
    """Opens the vocabulary of an input's params; see `data_path`.

    Raises:
        ValueError: if the file is missing, is not a vocabulary, or has another size.
    """
    vocabulary = Vocabulary(data_path(vocab_file, data_dir, "vocab_file", _HINT))
    if vocabulary.size != vocab_size:
        raise UserValueError(
            f"vocab_size: expected {vocabulary.size:,}, the number of tokens in "
            f"{vocabulary.path}, got {vocab_size:,}. Set vocab_size and the model's "
            "num_tokens to it, or make a vocabulary of the size you want."
        )
    return vocabulary


class Vocabulary:
    """A vocabulary of V tokens.

    Attributes:
        path: the file.
        size: V.
        pad_id, unk_id, bos_id, eos_id: the padding, unknown, begin and end token.
        fingerprint: the checksum of the file, 16 hexadecimal digits.

    Raises:
        ValueError: if the file is not a vocabulary, or has no padding, unknown, begin
            or end token.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        model = Path(path).read_bytes()
        try:
            processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise UserValueError(
                f"vocab_file: expected a SentencePiece file, got {path}. {_HINT}"
            ) from error
        self.pad_id, self.unk_id = processor.pad_id(), processor.unk_id()
        self.bos_id, self.eos_id = processor.bos_id(), processor.eos_id()
        ids = ("pad", "unk", "bos", "eos")
        missing = [name for name in ids if getattr(self, f"{name}_id") < 0]
        if missing:
            raise UserValueError(
                f"vocab_file: expected tokens for {', '.join(ids)}, got {path} without "
                f"{', '.join(missing)}. {_HINT}"
            )
        self.size = processor.get_piece_size()
        self.fingerprint = hashlib.sha256(model).hexdigest()[:16]
        self._processor = processor
        self._tokenizer = tensorflow_text.SentencepieceTokenizer(
            model=model, out_type=tf.int32
        )

    @property
    def languages(self) -> list[str]:
        """The languages with a token, in the order of the tokens."""
        tokens = map(self._processor.id_to_piece, range(self.size))
        return [found[1] for found in map(_LANGUAGE_TOKEN.fullmatch, tokens) if found]

    def LanguageIds(self, languages: Sequence[str]) -> list[int]:
        """Returns the token of each language.

        Raises:
            ValueError: if a language has none.
        """
        known = self.languages
        for language in languages:
            if language not in known:
                raise UserValueError(
                    f"vocab_file: expected the token {language_token(language)} for "
                    f"the target language {language!r}, got none in {self.path}."
                    f"{did_you_mean(language, known)} It has "
                    f"{', '.join(known) or 'no languages'}. Make a vocabulary with all "
                    "target languages, or set language_tokens=False for one direction."
                )
        return [self._processor.piece_to_id(language_token(x)) for x in languages]

    def Tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Returns the tokens of texts, int32 [K, (tokens)], without begin and end.

        Args:
            texts: string [K], in UTF-8.
        """
        return self._tokenizer.tokenize(texts)

    def Detokenize(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the text of each row up to its first end token, string [B].

        Padding and begin tokens are left out.

        Args:
            ids: int32 [B, T].
        """
        is_end = tf.cast(tf.equal(ids, self.eos_id), tf.int32)
        before_end = tf.equal(tf.cumsum(is_end, axis=1), 0)
        return self._tokenizer.detokenize(tf.ragged.boolean_mask(ids, before_end))
