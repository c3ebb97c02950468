"""Making a vocabulary of texts."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence

import sentencepiece

from lingvo_pipe.input.text.vocabulary import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    UNK_ID,
    language_token,
)

# Sums are rounded differently for another number; this is SentencePiece's own.
_NUM_THREADS = 16
_LONGEST_TEXT_BYTES = 1 << 20
_ERRORS_ONLY = 2

# How SentencePiece says that there can be no such vocabulary; and where in its source.
_TOO_HIGH = re.compile(r"size too high \(\d+\)\. .* value <= (\d+)")
_TOO_LOW = re.compile(r"smaller than required_chars\. \d+ vs (\d+)")
_INTERNALS = re.compile(r"^[A-Z_]+: (src/\S+\(\d+\) \[.*\])?")


def train_vocabulary(
    texts: Iterable[str],
    vocab_size: int,
    languages: Sequence[str] = (),
    model_type: str = "unigram",
    character_coverage: float = 0.9995,
    normalization: str = "nmt_nfkc",
    split_digits: bool = False,
) -> bytes:
    """Returns the file of a vocabulary; the same texts give the same bytes.

    Args:
        texts: Sentences or lines, of up to a megabyte each.
        vocab_size: How many tokens, those of languages and of `PAD_ID` to `EOS_ID`
            included.
        languages: Each gets a token `<2xx>`.
        model_type: `unigram` or `bpe`.
        character_coverage: Share of all characters that have a token; those that are
            rarer are unknown.
        normalization: Rule of SentencePiece, `identity` to keep texts as they are.
        split_digits: Whether each digit is a token by itself.

    Raises:
        ValueError: If there are no texts, one is too long, or there is no such
            vocabulary of them.
    """
    _check_numbers(vocab_size, character_coverage)
    file = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_checked(texts),
            model_writer=file,
            vocab_size=vocab_size,
            model_type=model_type,
            character_coverage=character_coverage,
            normalization_rule_name=normalization,
            split_digits=split_digits,
            user_defined_symbols=[language_token(language) for language in languages],
            pad_id=PAD_ID,
            unk_id=UNK_ID,
            bos_id=BOS_ID,
            eos_id=EOS_ID,
            max_sentence_length=_LONGEST_TEXT_BYTES,
            num_threads=_NUM_THREADS,
            minloglevel=_ERRORS_ONLY,
        )
    except (RuntimeError, OSError) as error:
        raise ValueError(_reason(str(error), vocab_size, len(languages))) from error
    return file.getvalue()


def _check_numbers(vocab_size: int, character_coverage: float) -> None:
    if vocab_size < 1:
        raise ValueError(
            f"vocab_size must be a number of tokens; got {vocab_size}. Usual are 8,000 "
            "to 64,000."
        )
    if not 0.98 <= character_coverage <= 1.0:
        raise ValueError(
            "character_coverage must be a share of all characters, from 0.98 to 1.0; "
            f"got {character_coverage}."
        )


def _reason(fault: str, vocab_size: int, num_languages: int) -> str:
    """Why there is no such vocabulary, by what SentencePiece says."""
    too_high, too_low = _TOO_HIGH.search(fault), _TOO_LOW.search(fault)
    if too_high:
        return (
            "vocab_size must be at most the number of tokens that the texts make, here "
            f"{int(too_high[1]):,}; got {vocab_size:,}. Ask for no more, or give more "
            "texts."
        )
    if too_low:
        return (
            f"vocab_size must be at least {int(too_low[1]):,}, for each character of "
            "these texts, each language and four marks have a token of their own; got "
            f"{vocab_size:,}. Raise it, or lower character_coverage."
        )
    said = _INTERNALS.sub("", fault.strip()).strip()
    return (
        f"A vocabulary of {vocab_size:,} tokens, {num_languages} of them of languages, "
        f"can't be made of these texts. {said or 'Are there any?'}"
    )


def _checked(texts: Iterable[str]) -> Iterable[str]:
    """The texts; raises a ValueError where SentencePiece would leave one out."""
    for number, text in enumerate(texts):
        if len(text.encode()) > _LONGEST_TEXT_BYTES:
            raise ValueError(
                f"Texts must have at most {_LONGEST_TEXT_BYTES:,} bytes; text "
                f"{number + 1} has {len(text.encode()):,}. Break it into lines."
            )
        yield text
