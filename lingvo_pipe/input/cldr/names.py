"""Phrases that are names: "Japan", "Welsh", "Cyrillic", "Portuguese (Brazil)"."""

from __future__ import annotations

from typing import Any

from lingvo_pipe.input.cldr.language import Language
from lingvo_pipe.input.cldr.phrase_kind import Draws, Kind, Value


def _single(name: str, weight: int, field: str) -> Kind:
    """Returns a kind of single names: a field of `Language` and of Babel's locale."""

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
    """Writes a language and its territory, as Babel writes the name of `pt_BR`."""
    name = _LANGUAGE.render(language, value[:1])
    return f"{name} ({_TERRITORY.render(language, value[1:])})"


NAME_KINDS = (
    _TERRITORY,
    _LANGUAGE,
    _single("script", 2, "scripts"),
    Kind("regional language", 5, _draw_regional_language, _render_regional_language),
)
