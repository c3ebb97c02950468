"""The vocabulary: its training, and conversion of texts to tokens and back.

A vocabulary is a SentencePiece file (Kudo and Richardson, 1808.06226). `<2de>` is the
language token of German, which precedes a source that is translated into German
(Johnson et al., 1611.04558).

Shapes: K texts, V tokens in the vocabulary, B rows of T tokens.
"""

import hashlib
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import sentencepiece
import tensorflow as tf
import tensorflow_text
from absl import logging

from lingvo_pipe.core.checks import check_counts
from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.input.text.text_files import data_path

# Ids of vocabularies made here. Padding is 0, as everywhere in TensorFlow.
PAD_ID, UNK_ID, BOS_ID, EOS_ID = range(4)

_LANGUAGE_TOKEN = re.compile("<2(.+)>")
_HINT = "`lingvo_pipe vocab` makes one."

# SentencePiece's default. Another number of threads changes the rounding of sums.
_NUM_THREADS = 16
_LONGEST_TEXT_BYTES = 1 << 20
_ERRORS_ONLY = 2
_NO_NORMALIZATION = "none"
_SAME_CHARACTERS = "identity"  # SentencePiece's rule; spaces still change.
_MAX_UNKNOWN = 0.01  # Share of tokens that are <unk>, above which a warning is logged.
_MAX_NAMED = 20

# SentencePiece's messages about impossible sizes, and its internal prefixes.
_TOO_HIGH = re.compile(r"size too high \(\d+\)\. .* value <= (\d+)")
_TOO_LOW = re.compile(r"smaller than required_chars\. \d+ vs (\d+)")
_INTERNALS = re.compile(r"^[A-Z_]+: (src/\S+\(\d+\) \[.*\])?")


def language_token(language: str) -> str:
    """Returns the token that precedes sources to translate into `language`."""
    return f"<2{language}>"


def open_vocabulary(
    vocab_file: str, data_dir: str | None, vocab_size: int
) -> "Vocabulary":
    """Opens the vocabulary of an input.

    Raises:
        ValueError: if the file is missing, or has another number of tokens.
    """
    vocabulary = Vocabulary(data_path(vocab_file, data_dir, "vocab_file", _HINT))
    if vocabulary.size != vocab_size:
        raise UserValueError(
            path="input.vocab_size",
            expected=f"{vocabulary.size}, the number of tokens in {vocabulary.path}",
            got=vocab_size,
            hint="Set it and the model's num_tokens to that, or make a vocabulary of "
            "the size you want.",
        )
    return vocabulary


class Vocabulary(tf.Module):
    """A vocabulary of SentencePiece, which a SavedModel can hold.

    Its `size` is V. Its `fingerprint` is 16 digits of the file's checksum.

    Raises:
        ValueError: if the file is no vocabulary, or lacks one of the special tokens.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
        model = Path(path).read_bytes()
        try:
            processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise UserValueError(
                path="vocab_file", expected="a SentencePiece file", got=path, hint=_HINT
            ) from error
        self.pad_id, self.unk_id = processor.pad_id(), processor.unk_id()
        self.bos_id, self.eos_id = processor.bos_id(), processor.eos_id()
        ids = ("pad", "unk", "bos", "eos")
        missing = [name for name in ids if getattr(self, f"{name}_id") < 0]
        if missing:
            expected = f"tokens for {', '.join(ids)}"
            got = Words(f"{path} without {', '.join(missing)}")
            raise UserValueError(
                path="vocab_file", expected=expected, got=got, hint=_HINT
            )
        self.size = processor.get_piece_size()
        self.fingerprint = hashlib.sha256(model).hexdigest()[:16]
        self._processor = processor
        self._tokenizer = tensorflow_text.SentencepieceTokenizer(
            model=model, out_type=tf.int32
        )

    @property
    def languages(self) -> list[str]:
        """The languages that have a language token, in the order of these tokens."""
        tokens = map(self._processor.id_to_piece, range(self.size))
        return [match[1] for match in map(_LANGUAGE_TOKEN.fullmatch, tokens) if match]

    def LanguageIds(self, languages: Sequence[str]) -> list[int]:
        """Returns the id of each language's token.

        Raises:
            ValueError: if a language has no token.
        """
        available = self.languages
        for language in languages:
            if language not in available:
                raise UserValueError(
                    path="target language",
                    expected=f"one with a token in {self.path} "
                    f"({', '.join(available) or 'none'})",
                    got=language,
                    names=available,
                    hint="Make a vocabulary with all target languages, or set "
                    "language_tokens=False for one direction.",
                )
        return [self._processor.piece_to_id(language_token(x)) for x in languages]

    def LanguageId(self, language: tf.Tensor) -> tf.Tensor:
        """Returns the id, int32 `[]`, of the token of a language, string `[]`.

        An unknown language fails an assertion of TensorFlow.
        """
        token = self._tokenizer.string_to_id(tf.strings.join(["<2", language, ">"]))
        message = f"Expected a language of {', '.join(self.languages)}."
        tf.debugging.assert_none_equal(token, self.unk_id, message=message)
        return token

    def Tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Maps K texts in UTF-8 to int32 `[K, (tokens)]`, without begin and end."""
        return self._tokenizer.tokenize(texts)

    def NumUnknown(self, tokens: tf.RaggedTensor) -> tf.Tensor:
        """Returns the number of unknown tokens in each of K texts, int32 `[K]`."""
        is_unknown = tf.cast(tokens.flat_values == self.unk_id, tf.int32)
        return tf.reduce_sum(tokens.with_flat_values(is_unknown), 1)

    def WarnOfUnknown(self, shares: Mapping[str, float]) -> None:
        """Logs the texts, by name, whose `shares` of unknown tokens are too high."""
        high = [f"{x:.1%} of {name}" for name, x in shares.items() if x > _MAX_UNKNOWN]
        if high:
            logging.warning(
                "Tokens that are not in the vocabulary %s are all read as <unk>: %s. "
                "Make a vocabulary from these texts, too, or raise its size or its "
                "--character_coverage.",
                self.path,
                ", ".join(high[:_MAX_NAMED]),
            )

    def Detokenize(self, ids: tf.Tensor) -> tf.Tensor:
        """Maps rows, int32 `[B, T]`, to texts, string `[B]`, up to their end tokens."""
        is_end = tf.cast(tf.equal(ids, self.eos_id), tf.int32)
        before_end = tf.equal(tf.cumsum(is_end, axis=1), 0)
        return self._tokenizer.detokenize(tf.ragged.boolean_mask(ids, before_end))


def train_vocabulary(
    texts: Iterable[str],
    vocab_size: int,
    languages: Sequence[str] = (),
    model_type: str = "unigram",
    character_coverage: float = 0.9995,
    normalization: str = "nmt_nfkc",
    split_digits: bool = False,
) -> bytes:
    """Trains a vocabulary and returns its file. Equal arguments give equal bytes.

    Args:
        texts: texts of up to a megabyte each.
        vocab_size: number of tokens, including language tokens and `PAD_ID` to
            `EOS_ID`.
        languages: languages that get a token.
        model_type: `unigram` or `bpe`.
        character_coverage: share of all characters that have a token.
        normalization: a rule of SentencePiece, or `none`, which keeps all spaces and
            gives the newline a token; the rule `identity` keeps all but spaces.
        split_digits: whether each digit is a token.

    Raises:
        ValueError: if the texts do not allow such a vocabulary.
    """
    check_counts(vocab_size=vocab_size, hint="Usual sizes are 8,000 to 64,000.")
    if not 0.98 <= character_coverage <= 1.0:
        expected = "a share of all characters from 0.98 to 1.0"
        raise UserValueError(
            path="character_coverage", expected=expected, got=character_coverage
        )
    symbols = [language_token(language) for language in languages]
    keeps_texts = normalization == _NO_NORMALIZATION
    if keeps_texts:
        symbols.append("\n")  # Texts to train on are often lines, without newlines.
    file = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_checked(texts),
            model_writer=file,
            vocab_size=vocab_size,
            model_type=model_type,
            character_coverage=character_coverage,
            normalization_rule_name=_SAME_CHARACTERS if keeps_texts else normalization,
            # Both would lose spaces, the second when tokens become texts again.
            remove_extra_whitespaces=not keeps_texts,
            add_dummy_prefix=not keeps_texts,
            split_digits=split_digits,
            user_defined_symbols=symbols,
            pad_id=PAD_ID,
            unk_id=UNK_ID,
            bos_id=BOS_ID,
            eos_id=EOS_ID,
            max_sentence_length=_LONGEST_TEXT_BYTES,
            num_threads=_NUM_THREADS,
            minloglevel=_ERRORS_ONLY,
        )
    except (RuntimeError, OSError) as error:
        raise _problem(str(error), vocab_size, len(languages)) from error
    return file.getvalue()


def _problem(text: str, vocab_size: int, num_languages: int) -> UserValueError:
    too_high, too_low = _TOO_HIGH.search(text), _TOO_LOW.search(text)
    if too_high:
        expected = f"at most {too_high[1]}, the number of tokens in these texts"
        hint = "Lower it, or add texts."
    elif too_low:
        expected = (
            f"at least {too_low[1]}: a token for each character of these texts, each "
            "language and four special tokens"
        )
        hint = "Raise it, or lower character_coverage."
    else:
        expected = f"tokens that these texts have, {num_languages} for languages"
        hint = _INTERNALS.sub("", text.strip()).strip() or "Are there any texts?"
    return UserValueError(
        path="vocab_size", expected=expected, got=vocab_size, hint=hint
    )


def _checked(texts: Iterable[str]) -> Iterable[str]:
    for number, text in enumerate(texts):
        if len(text.encode()) > _LONGEST_TEXT_BYTES:
            raise UserValueError(
                path=f"text {number + 1}",
                expected=f"at most {_LONGEST_TEXT_BYTES:,} bytes",
                got=len(text.encode()),
                hint="Break it into lines.",
            )
        yield text
