"""Random sentences: lists of phrases that can be written in any language.

**The split.** Test sentences share no content with training sentences. A hash of each
phrase's value (a date, a quantity, a price) assigns the value to training or, for one
value in 16, to testing. The hash is the same for all languages and seeds. A sentence
has only values of its own split.

Names of territories, languages and scripts are in both splits, because nobody can
translate an unseen name. If a sentence has only names, their set is in one split.
"""

import hashlib
from typing import Any, Literal, NamedTuple

from babel.lists import format_list

from lingvo_pipe.input.cldr.dates import DATE_KINDS, TIME_KINDS
from lingvo_pipe.input.cldr.language import Language, get_language
from lingvo_pipe.input.cldr.phrase_kind import Content, Draws, Kind, Value
from lingvo_pipe.input.cldr.quantities import QUANTITY_KINDS


def _single(name: str, weight: int, field: str) -> Kind:
    def draw(draws: Draws, language: Language) -> Value:
        return (draws.one_of(getattr(language, field)),)

    def render(language: Language, value: Any) -> str:
        return getattr(language.locale, field)[value[0]]

    return Kind(name, weight, draw, render, is_name=True)


_TERRITORY = _single("territory", 8, "territories")
_LANGUAGE = _single("language", 5, "languages")


def _draw_regional_language(draws: Draws, language: Language) -> Value:
    return _LANGUAGE.draw(draws, language) + _TERRITORY.draw(draws, language)


def _render_regional_language(language: Language, value: Any) -> str:
    name = _LANGUAGE.render(language, value[:1])
    return f"{name} ({_TERRITORY.render(language, value[1:])})"


_NAME_KINDS = (
    _TERRITORY,
    _LANGUAGE,
    _single("script", 2, "scripts"),
    Kind("regional language", 5, _draw_regional_language, _render_regional_language),
)


KINDS = _NAME_KINDS + DATE_KINDS + TIME_KINDS + QUANTITY_KINDS

_BY_WEIGHT = tuple(kind for kind in KINDS for _ in range(kind.weight))
_NUM_PHRASES = (1, 1, 2, 2, 2, 3, 3, 4)
_CONJUNCTIONS: tuple[Literal["standard", "or"], ...] = ("standard", "standard", "or")
_TEST_SHARE = 16
_SEED = 0


class Phrase(NamedTuple):
    """A phrase: a value in no language, and the Kind that writes the value."""

    kind: Kind
    value: Value


class Sentence(NamedTuple):
    """Phrases that are joined by "and" (the conjunction `standard`) or by "or"."""

    phrases: tuple[Phrase, ...]
    conjunction: Literal["standard", "or"]

    def contents(self) -> list[Content]:
        """Returns the contents that must all be in the split of the sentence."""
        contents = [
            content
            for kind, value in self.phrases
            if not kind.is_name
            for content in kind.contents(value)
        ]
        names = sorted(f"{kind.name} {value[0]}" for kind, value in self.phrases)
        return contents or [("names", *names)]

    def text(self, language: str) -> str:
        """Returns the sentence in the language of a code, such as `de`."""
        writer = get_language(language)
        phrases = [kind.render(writer, value) for kind, value in self.phrases]
        return writer.plain(format_list(phrases, self.conjunction, writer.locale))


def draw_sentence(language: str, split: str, index: int) -> Sentence:
    """Returns a random sentence that both English and another language can express.

    The sentence depends only on the arguments and on Babel's version. The split is
    `train` or `test`. `index` is the sentence's number, from 0, without limit.
    """
    draws, writer = Draws(language, split, index, _SEED), get_language(language)
    while True:
        kinds = [draws.one_of(_BY_WEIGHT) for _ in range(draws.one_of(_NUM_PHRASES))]
        phrases = tuple(_draw_phrase(draws, kind, writer, split) for kind in kinds)
        sentence = Sentence(phrases, draws.one_of(_CONJUNCTIONS))
        in_split = all(split_of(content) == split for content in sentence.contents())
        if in_split and len(set(phrases)) == len(phrases):
            return sentence


def split_of(content: Content) -> str:
    """Returns `test` for one content in 16, chosen by a hash, and else `train`."""
    digest = hashlib.blake2b(repr(content).encode(), digest_size=8).digest()
    is_test = int.from_bytes(digest, "little") % _TEST_SHARE == 0
    return "test" if is_test else "train"


def _draw_phrase(draws: Draws, kind: Kind, language: Language, split: str) -> Phrase:
    while True:
        value = kind.draw(draws, language)
        contents = kind.contents(value)
        if kind.is_name or all(split_of(content) == split for content in contents):
            return Phrase(kind, value)
