"""Training of a vocabulary from texts."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence

import sentencepiece

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.input.text.vocabulary import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    UNK_ID,
    language_token,
)

# SentencePiece's default. Another number of threads changes the rounding of sums.
_NUM_THREADS = 16
_LONGEST_TEXT_BYTES = 1 << 20
_ERRORS_ONLY = 2

# SentencePiece's messages about impossible sizes, and its internal prefixes.
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
    """Returns the content of a vocabulary file; equal texts give equal bytes.

    Args:
        texts: sentences or lines, up to a megabyte each.
        vocab_size: number of tokens, including language tokens and `PAD_ID` to
            `EOS_ID`.
        languages: languages that get a token `<2xx>`.
        model_type: `unigram` or `bpe`.
        character_coverage: share of all characters that have a token; rarer ones are
            unknown.
        normalization: SentencePiece's rule; `identity` keeps texts unchanged.
        split_digits: if True, each digit is a separate token.

    Raises:
        ValueError: if there are no texts, a text is too long, or the texts do not allow
            such a vocabulary.
    """
    if vocab_size < 1:
        raise UserValueError(
            f"vocab_size: expected a positive number of tokens, got {vocab_size}. "
            "Usual sizes are 8,000 to 64,000."
        )
    if not 0.98 <= character_coverage <= 1.0:
        raise UserValueError(
            "character_coverage: expected a share of all characters from 0.98 to 1.0, "
            f"got {character_coverage}."
        )
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
        raise UserValueError(_reason(str(error), vocab_size, len(languages))) from error
    return file.getvalue()


def _reason(problem: str, vocab_size: int, num_languages: int) -> str:
    """Returns an error text made from SentencePiece's message."""
    too_high, too_low = _TOO_HIGH.search(problem), _TOO_LOW.search(problem)
    if too_high:
        return (
            f"vocab_size: expected at most {int(too_high[1]):,}, the number of tokens "
            f"in these texts, got {vocab_size:,}. Lower it, or add texts."
        )
    if too_low:
        return (
            f"vocab_size: expected at least {int(too_low[1]):,} (a token for each "
            "character of these texts, each language and four special tokens), got "
            f"{vocab_size:,}. Raise it, or lower character_coverage."
        )
    reason = _INTERNALS.sub("", problem.strip()).strip()
    return (
        f"vocab_size: cannot make {vocab_size:,} tokens, {num_languages} of them for "
        f"languages, from these texts. {reason or 'Are there any texts?'}"
    )


def _checked(texts: Iterable[str]) -> Iterable[str]:
    """Yields the texts; raises a ValueError for one that SentencePiece would skip."""
    for number, text in enumerate(texts):
        if len(text.encode()) > _LONGEST_TEXT_BYTES:
            raise UserValueError(
                f"texts: expected at most {_LONGEST_TEXT_BYTES:,} bytes each, got text "
                f"{number + 1} with {len(text.encode()):,}. Break it into lines."
            )
        yield text
