"""Phrases that are names: "Japan", "Welsh", "Cyrillic", "Portuguese (Brazil)"."""

from __future__ import annotations

from typing import Any

from lingvo_pipe.input.cldr.draws import Draws
from lingvo_pipe.input.cldr.kind import Kind, Value
from lingvo_pipe.input.cldr.language import Language


def _draw_territory(draws: Draws, language: Language) -> Value:
    return (draws.one_of(language.territories),)


def _render_territory(language: Language, value: Any) -> str:
    return language.locale.territories[value[0]]


def _draw_language(draws: Draws, language: Language) -> Value:
    return (draws.one_of(language.languages),)


def _render_language(language: Language, value: Any) -> str:
    return language.locale.languages[value[0]]


def _draw_script(draws: Draws, language: Language) -> Value:
    return (draws.one_of(language.scripts),)


def _render_script(language: Language, value: Any) -> str:
    return language.locale.scripts[value[0]]


def _draw_regional_language(draws: Draws, language: Language) -> Value:
    return _draw_language(draws, language) + _draw_territory(draws, language)


def _render_regional_language(language: Language, value: Any) -> str:
    """Writes a language and where it is spoken, as Babel writes the name of `pt_BR`."""
    name = _render_language(language, value[:1])
    return f"{name} ({_render_territory(language, value[1:])})"


NAME_KINDS = (
    Kind("territory", 8, _draw_territory, _render_territory, is_name=True),
    Kind("language", 5, _draw_language, _render_language, is_name=True),
    Kind("script", 2, _draw_script, _render_script, is_name=True),
    Kind("regional language", 5, _draw_regional_language, _render_regional_language),
)
