"""Making a vocabulary of texts."""

from __future__ import annotations

import io
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
        reason = str(error).strip().splitlines()[-1]
        raise ValueError(
            f"A vocabulary of {vocab_size:,} tokens, {len(languages)} of them of "
            f"languages, can't be made of these texts. {reason}"
        ) from error
    return file.getvalue()


def _checked(texts: Iterable[str]) -> Iterable[str]:
    """The texts; raises a ValueError where SentencePiece would leave one out."""
    for number, text in enumerate(texts):
        if len(text.encode()) > _LONGEST_TEXT_BYTES:
            raise ValueError(
                f"Texts must have at most {_LONGEST_TEXT_BYTES:,} bytes; text "
                f"{number + 1} has {len(text.encode()):,}. Break it into lines."
            )
        yield text
