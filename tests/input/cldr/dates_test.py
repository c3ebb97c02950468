"""Dates and times, as CLDR writes them."""

from datetime import date, time

import pytest
from babel.dates import format_date, format_interval, format_skeleton, format_time

from tests.input.cldr.value_samples import kind_named, kinds_named, samples, write


@pytest.mark.parametrize(
    ("kind", "value", "texts"),
    [
        ("day", (2, 29), ["February 29", "29. Februar"]),
        (
            "moment",
            (2031, 3, 4, 15, 30),
            ["March 4, 2031, 3:30 PM", "4. März 2031, 15:30"],
        ),
        ("relative time", (3, "day"), ["in 3 days", "in 3 Tagen"]),
        ("relative time", (-1, "month"), ["1 month ago", "vor 1 Monat"]),
        ("relative time", (12, "month"), ["in 12 months", "in 12 Monaten"]),
        ("relative time", (-99, "second"), ["99 seconds ago", "vor 99 Sekunden"]),
    ],
)
def test_days_and_times_are_written_as_cldr_says(kind, value, texts):
    assert [write(kind_named(kind), lang, value) for lang in ("en", "de")] == texts


def in_hours(start, end, locale):
    has_halves = "h" in str(locale.time_formats["short"]).split("'")[0]
    return format_interval(start, end, "hm" if has_halves else "Hm", locale=locale)


# By kind and number of a format: the function of Babel that writes it.
BABEL = {
    ("date", 0): lambda value, locale: format_date(date(*value), "long", locale),
    ("date", 1): lambda value, locale: format_date(date(*value), "full", locale),
    ("day", 0): lambda value, locale: in_skeleton("MMMMd", date(2000, *value), locale),
    ("month", 0): lambda value, locale: in_skeleton(
        "yMMMM", date(value[0], value[1], 1), locale
    ),
    ("quarter", 0): lambda value, locale: in_skeleton(
        "yQQQQ", date(value[0], 3 * value[1] - 2, 1), locale
    ),
    ("days", 0): lambda value, locale: format_interval(
        date(*value[:3]), date(*value[3:]), "yMMMd", locale=locale
    ),
    ("time", 0): lambda value, locale: format_time(
        time(*value), "short", locale=locale
    ),
    ("hours", 0): lambda value, locale: in_hours(
        time(*value[:2]), time(*value[2:]), locale
    ),
}


def in_skeleton(skeleton, day, locale):
    return format_skeleton(skeleton, day, fuzzy=False, locale=locale)


@pytest.mark.parametrize(("name", "number"), BABEL)
def test_dates_and_times_are_those_of_babel(name, number):
    kind = kinds_named(name)[number]
    for language, value in samples(kind, 12 if name in ("days", "hours") else 5):
        expected = BABEL[name, number](value, language.locale)
        assert kind.render(language, value) == expected
        if name in ("days", "hours"):
            middle = len(value) // 2
            assert value[:middle] < value[middle:]


def test_moments_hold_their_date_and_time():
    date, time = kinds_named("date")[0], kind_named("time")
    for language, value in samples(kind_named("moment"), 3):
        code = str(language.locale)
        text = write(kind_named("moment"), code, value)
        assert write(date, code, value[:3]) in text
        assert write(time, code, value[3:]) in text


def test_an_h_in_the_words_of_a_pattern_is_no_hour():
    # Upper Sorbian has a word for o'clock, and 24 hours.
    assert write(kind_named("time"), "hsb", (14, 41)) == "14:41 hodź."
    text = write(kind_named("hours"), "hsb", (14, 41, 22, 38))
    assert text == "14:41 – 22:38 hodź."
