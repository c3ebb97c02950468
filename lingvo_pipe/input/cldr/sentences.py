"""Sentences: lists of phrases, drawn as values and written in any language.

**The split.** Test sentences share no content with training sentences. The content is
the values of the phrases: a date, a quantity, a price. A hash of the value, the same
for all languages and seeds, assigns it to training or to testing (one in 16), and all
values of a sentence have its split. So a test sentence's date occurs in no training
sentence: neither alone nor among other phrases, neither with its weekday nor with a
time of day, and not as the end of an interval.

Names are the exception, since nobody can translate an unseen name: names of
territories, languages and scripts are in both splits. If a sentence has only names,
their set has one split: if "Japan or Welsh" is for testing, "Welsh and Japan" is not
for training.
"""

from __future__ import annotations

import hashlib
from typing import Literal, NamedTuple

from babel.lists import format_list

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.input.cldr.dates import DATE_KINDS, TIME_KINDS
from lingvo_pipe.input.cldr.language import Language, get_language
from lingvo_pipe.input.cldr.names import NAME_KINDS
from lingvo_pipe.input.cldr.phrase_kind import Content, Draws, Kind, Value
from lingvo_pipe.input.cldr.quantities import QUANTITY_KINDS

SPLITS = ("train", "test")
KINDS = NAME_KINDS + DATE_KINDS + TIME_KINDS + QUANTITY_KINDS

_BY_WEIGHT = tuple(kind for kind in KINDS for _ in range(kind.weight))
_NUM_PHRASES = (1, 1, 2, 2, 2, 3, 3, 4)
_CONJUNCTIONS: tuple[Literal["standard", "or"], ...] = ("standard", "standard", "or")
_TEST_SHARE = 16


class Phrase(NamedTuple):
    """A value and its kind, which writes it."""

    kind: Kind
    value: Value


class Sentence(NamedTuple):
    """Phrases joined by "and" (`standard`) or by "or"."""

    phrases: tuple[Phrase, ...]
    conjunction: Literal["standard", "or"]

    def contents(self) -> list[Content]:
        """Returns the contents, each of which belongs to one split."""
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
    """Returns a sentence that a language and English have words for.

    It is a function of the arguments and of Babel's version.

    Args:
        language: one of LANGUAGES.
        split: `train` or `test`.
        index: number of the sentence, from 0, without limit.
        seed: seed of the sequence of sentences.

    Raises:
        ValueError: if there is no such split.
    """
    if split not in SPLITS:
        raise UserValueError(f"split: expected {' or '.join(SPLITS)}, got {split!r}.")
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
    """Returns the split that a content belongs to."""
    digest = hashlib.blake2b(repr(content).encode(), digest_size=8).digest()
    is_test = int.from_bytes(digest, "little") % _TEST_SHARE == 0
    return "test" if is_test else "train"


def _draw_phrase(draws: Draws, kind: Kind, language: Language, split: str) -> Phrase:
    while True:
        value = kind.draw(draws, language)
        contents = kind.contents(value)
        if kind.is_name or all(split_of(content) == split for content in contents):
            return Phrase(kind, value)
