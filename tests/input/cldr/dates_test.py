"""Dates, as CLDR writes them."""

import datetime

import pytest
from babel.dates import format_date, format_interval, format_skeleton

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


def test_dates_are_those_of_babel():
    for kind, style in zip(kinds_named("date"), ("long", "full"), strict=True):
        for language, value in samples(kind, 5):
            date = datetime.date(*value)
            expected = format_date(date, style, language.locale)
            assert kind.render(language, value) == expected


@pytest.mark.parametrize(
    ("name", "skeleton"), [("day", "MMMMd"), ("month", "yMMMM"), ("quarter", "yQQQQ")]
)
def test_parts_of_dates_are_those_of_babel(name, skeleton):
    kind = kind_named(name)
    for language, value in samples(kind, 5):
        date = {
            "day": lambda month, day: datetime.date(2000, month, day),
            "month": lambda year, month: datetime.date(year, month, 1),
            "quarter": lambda year, quarter: datetime.date(year, 3 * quarter - 2, 1),
        }[name](*value)
        expected = format_skeleton(skeleton, date, fuzzy=False, locale=language.locale)
        assert kind.render(language, value) == expected


def test_intervals_are_those_of_babel():
    kind = kind_named("days")
    for language, value in samples(kind, 12):
        start, end = datetime.date(*value[:3]), datetime.date(*value[3:])
        assert start < end
        expected = format_interval(start, end, "yMMMd", locale=language.locale)
        assert kind.render(language, value) == expected
