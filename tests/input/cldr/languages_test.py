"""The languages are those that the rule in `language.py` picks."""

from typing import Any

from babel import localedata
from babel.core import get_global

from lingvo_pipe.input.cldr.language import (
    EIGHT,
    ENGLISH,
    LANGUAGES,
    Language,
    get_language,
)
from lingvo_pipe.input.cldr.sentences import draw_sentence

NAMES = ("territories", "languages", "scripts", "currencies", "unit_widths")
WORDS = [
    ("months", "format", "wide"),
    ("days", "format", "wide"),
    ("quarters", "format", "wide"),
    ("list_patterns", "or"),
    *(
        ("date_fields", unit, direction)
        for unit in ("year", "month", "week", "day", "hour", "minute", "second")
        for direction in ("past", "future")
    ),
]


def data_of(code):
    data: Any = localedata.load(code)
    return localedata.LocaleDataDict(data)


def entry(data, path):
    """Returns what Babel has there, or None."""
    for key in path:
        if key not in data:
            return None
        data = data[key]
    return dict(data)


def patterns(data, width):
    formats = data["compact_decimal_formats"].get(width, {})
    return {power: str(p) for power, p in formats.get("other", {}).items()}


def has_own_words(code):
    data, root = data_of(code), data_of("root")
    if any(entry(data, path) in (None, entry(root, path)) for path in WORDS):
        return False
    short = patterns(data, "short")
    return bool(patterns(data, "long")) or short != patterns(root, "short")


def has_own_names(code):
    language, english = Language(code), get_language(ENGLISH)
    return all(
        len(getattr(language, names)) >= 0.7 * len(getattr(english, names))
        for names in NAMES
    )


def test_they_are_those_of_the_rule():
    parents = get_global("parent_exceptions")
    well_covered = [
        code
        for code in sorted(localedata.locale_identifiers())
        if "_" not in code
        and code != ENGLISH
        and parents.get(code, "root") == "root"
        and has_own_words(code)
        and has_own_names(code)
    ]
    assert well_covered == list(LANGUAGES)
    assert len(LANGUAGES) == 102


def test_the_eight_are_among_them():
    assert len(set(EIGHT)) == 8
    assert set(EIGHT) < set(LANGUAGES)


def test_most_sentences_differ_from_the_english():
    num_sentences = 100
    for language in LANGUAGES:
        sentences = [
            draw_sentence(language, "train", index) for index in range(num_sentences)
        ]
        same = sum(s.text(language) == s.text(ENGLISH) for s in sentences)
        assert same <= 0.15 * num_sentences, language
