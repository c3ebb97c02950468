"""Values of a kind, and how languages write them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lingvo_pipe.input.cldr.language import ENGLISH, LANGUAGES, Language, get_language
from lingvo_pipe.input.cldr.phrase_kind import Draws, Kind
from lingvo_pipe.input.cldr.sentences import KINDS


def kinds_named(name: str) -> list[Kind]:
    return [kind for kind in KINDS if kind.name == name]


def kind_named(name: str) -> Kind:
    (kind,) = kinds_named(name)
    return kind


def write(kind: Kind, language: str, value: Any) -> str:
    """Returns the value as it stands in a sentence."""
    writer = get_language(language)
    return writer.plain(kind.render(writer, value))


def samples(kind: Kind, num_values: int) -> Iterator[tuple[Language, Any]]:
    """Yields some values for each language."""
    for code in (ENGLISH, *LANGUAGES):
        draws = Draws(kind.name, code)
        for _ in range(num_values):
            yield get_language(code), kind.draw(draws, get_language(code))
