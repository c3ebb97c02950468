"""Sentences: lists of phrases, drawn as values and written in any language.

**The split.** No test sentence says what a training sentence says. What a sentence says
is the values of its phrases: that date, that quantity, that price. A hash of the value,
the same for all languages and seeds, decides whether it is for training or for testing
(one of 16), and all of a sentence's values are of its split. So a test sentence's date
is in no training sentence: neither alone nor among other phrases, neither with its
weekday nor with a time of day, and not as the end of an interval.

Names are the exception, since nobody can translate one that was never seen: those of
territories, languages and scripts are in both splits. Where a sentence has no other
phrases, its names together, in any order, are of one split: if "Japan or Welsh" is for
testing, neither it nor "Welsh and Japan" is for training.
"""

from __future__ import annotations

import hashlib
from typing import Literal, NamedTuple

from babel.lists import format_list

from lingvo_pipe.input.cldr.amounts import AMOUNT_KINDS
from lingvo_pipe.input.cldr.dates import DATE_KINDS
from lingvo_pipe.input.cldr.draws import Draws
from lingvo_pipe.input.cldr.kind import Content, Kind, Value
from lingvo_pipe.input.cldr.language import Language, get_language
from lingvo_pipe.input.cldr.names import NAME_KINDS
from lingvo_pipe.input.cldr.times import TIME_KINDS

SPLITS = ("train", "test")
KINDS = NAME_KINDS + DATE_KINDS + TIME_KINDS + AMOUNT_KINDS

_BY_WEIGHT = tuple(kind for kind in KINDS for _ in range(kind.weight))
_NUM_PHRASES = (1, 1, 2, 2, 2, 3, 3, 4)
_CONJUNCTIONS: tuple[Literal["standard", "or"], ...] = ("standard", "standard", "or")
_TEST_SHARE = 16


class Phrase(NamedTuple):
    """A value, and how it is written."""

    kind: Kind
    value: Value


class Sentence(NamedTuple):
    """Phrases, and whether they are joined by and (`standard`) or `or`."""

    phrases: tuple[Phrase, ...]
    conjunction: Literal["standard", "or"]

    def contents(self) -> list[Content]:
        """Returns what it says: parts, each of which is of one split."""
        contents = [
            content
            for kind, value in self.phrases
            if not kind.is_name
            for content in kind.contents(value)
        ]
        names = sorted(f"{kind.name} {value[0]}" for kind, value in self.phrases)
        return contents or [("names", *names)]

    def text(self, language: str) -> str:
        """Returns the sentence in a language."""
        writer = get_language(language)
        phrases = [kind.render(writer, value) for kind, value in self.phrases]
        return writer.plain(format_list(phrases, self.conjunction, writer.locale))


def draw_sentence(language: str, split: str, index: int, seed: int = 0) -> Sentence:
    """Returns a sentence that a language, as English, has words for.

    It is a function of the arguments and of Babel's version.

    Args:
        language: One of LANGUAGES.
        split: `train` or `test`.
        index: Which sentence, from 0; there is no last.
        seed: Chooses among sequences of sentences.

    Raises:
        ValueError: If there is no such split.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be {' or '.join(SPLITS)}; got {split!r}.")
    draws = Draws(language, split, index, seed)
    while True:
        kinds = [draws.one_of(_BY_WEIGHT) for _ in range(draws.one_of(_NUM_PHRASES))]
        phrases = tuple(
            _draw_phrase(draws, kind, get_language(language), split) for kind in kinds
        )
        sentence = Sentence(phrases, draws.one_of(_CONJUNCTIONS))
        in_split = all(split_of(content) == split for content in sentence.contents())
        if in_split and len(set(phrases)) == len(phrases):
            return sentence


def split_of(content: Content) -> str:
    """Returns the split of a part of what a sentence says."""
    digest = hashlib.blake2b(repr(content).encode(), digest_size=8).digest()
    is_test = int.from_bytes(digest, "little") % _TEST_SHARE == 0
    return "test" if is_test else "train"


def _draw_phrase(draws: Draws, kind: Kind, language: Language, split: str) -> Phrase:
    while True:
        value = kind.draw(draws, language)
        contents = kind.contents(value)
        if kind.is_name or all(split_of(content) == split for content in contents):
            return Phrase(kind, value)
