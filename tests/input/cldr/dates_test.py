"""Dates and times, as CLDR writes them."""

from datetime import date, time

import pytest
from babel.dates import format_date, format_interval, format_skeleton, format_time

from tests.input.cldr.value_samples import kind_named, kinds_named, samples, write


@pytest.mark.parametrize(
    ("language", "texts"),
    [
        ("en", ["March 4, 2031", "Tuesday, March 4, 2031"]),
        ("de", ["4. März 2031", "Dienstag, 4. März 2031"]),
        ("ja", ["2031年3月4日", "2031年3月4日火曜日"]),
        ("mr", ["४ मार्च, २०३१", "मंगळवार, ४ मार्च, २०३१"]),
    ],
)
def test_dates_are_written_with_the_weekday_and_without(language, texts):
    kinds = kinds_named("date")
    assert [write(kind, language, (2031, 3, 4)) for kind in kinds] == texts


@pytest.mark.parametrize(
    ("kind", "value", "texts"),
    [
        ("day", (3, 4), ["March 4", "4 марта"]),
        ("day", (2, 29), ["February 29", "29 февраля"]),
        ("month", (2031, 3), ["March 2031", "март 2031 г."]),
        ("quarter", (2031, 4), ["4th quarter 2031", "4-й квартал 2031 г."]),
        ("days", (2031, 3, 4, 2031, 3, 9), ["Mar 4 – 9, 2031", "4–9 мар. 2031 г."]),
    ],
)
def test_parts_of_dates_are_written_as_cldr_says(kind, value, texts):
    assert [write(kind_named(kind), lang, value) for lang in ("en", "ru")] == texts


@pytest.mark.parametrize(
    ("kind", "value", "texts"),
    [
        ("time", (15, 30), ["3:30 PM", "15:30"]),
        ("time", (0, 5), ["12:05 AM", "00:05"]),
        (
            "moment",
            (2031, 3, 4, 15, 30),
            ["March 4, 2031, 3:30 PM", "4. März 2031, 15:30"],
        ),
        ("hours", (9, 5, 9, 50), ["9:05 – 9:50 AM", "09:05–09:50 Uhr"]),
        ("hours", (9, 5, 11, 50), ["9:05 – 11:50 AM", "09:05–11:50 Uhr"]),
        ("hours", (9, 5, 21, 5), ["9:05 AM – 9:05 PM", "09:05–21:05 Uhr"]),
        ("relative time", (3, "day"), ["in 3 days", "in 3 Tagen"]),
        ("relative time", (-1, "month"), ["1 month ago", "vor 1 Monat"]),
        ("relative time", (12, "month"), ["in 12 months", "in 12 Monaten"]),
        ("relative time", (-99, "second"), ["99 seconds ago", "vor 99 Sekunden"]),
    ],
)
def test_times_are_written_as_cldr_says(kind, value, texts):
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
