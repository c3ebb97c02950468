"""Phrases that are dates: "Tuesday, March 4, 2031", "March 2031", "Mar 4 – 9, 2031"."""

from __future__ import annotations

import datetime
import functools
from typing import Any

from babel import Locale
from babel.dates import DateTimePattern, parse_pattern

from lingvo_pipe.input.cldr.draws import Draws
from lingvo_pipe.input.cldr.kind import Kind, Value
from lingvo_pipe.input.cldr.language import Language

_FIRST_YEAR = 1900
_NUM_YEARS = 200
_FIRST_DAY = datetime.date(_FIRST_YEAR, 1, 1).toordinal()
_NUM_DAYS = datetime.date(_FIRST_YEAR + _NUM_YEARS, 1, 1).toordinal() - _FIRST_DAY
# In days; a third of the intervals each is at most as long as that.
_INTERVALS = (10, 60, 400)


def draw_date(draws: Draws, language: Language) -> tuple[int, int, int]:
    """Returns year, month and day."""
    del language  # All have words for all dates.
    date = datetime.date.fromordinal(_FIRST_DAY + draws.below(_NUM_DAYS))
    return date.year, date.month, date.day


def render_date(language: Language, value: Any) -> str:
    """Writes year, month and day: "March 4, 2031"."""
    return _render(language, language.locale.date_formats["long"], value)


def render_interval(
    language: Language, skeleton: str, field: str, start: Any, end: Any
) -> str:
    """Writes an interval of dates or times.

    Args:
        language: The language to write in.
        skeleton: What to write of both, as CLDR says it: `yMMMd`.
        field: The largest of these fields in which they differ: `M`.
        start: A date or time of Python's.
        end: Another.
    """
    first, second = _interval_patterns(language.locale, skeleton, field)
    return first.apply(start, language.locale) + second.apply(end, language.locale)


@functools.cache
def _interval_patterns(
    locale: Locale, skeleton: str, field: str
) -> tuple[DateTimePattern, ...]:
    # Babel's format_interval looks for them, and parses them, at every call.
    return tuple(map(parse_pattern, locale.interval_formats[skeleton][field]))


def _render(language: Language, pattern: DateTimePattern, date: Any) -> str:
    return pattern.apply(datetime.date(*date), language.locale)


def _render_date_and_weekday(language: Language, value: Any) -> str:
    return _render(language, language.locale.date_formats["full"], value)


def _draw_day(draws: Draws, language: Language) -> Value:
    return draw_date(draws, language)[1:]


def _render_day(language: Language, value: Any) -> str:
    a_leap_year = 2000
    pattern = language.locale.datetime_skeletons["MMMMd"]
    return _render(language, pattern, (a_leap_year, *value))


def _draw_month(draws: Draws, language: Language) -> Value:
    return draw_date(draws, language)[:2]


def _render_month(language: Language, value: Any) -> str:
    return _render(language, language.locale.datetime_skeletons["yMMMM"], (*value, 1))


def _draw_quarter(draws: Draws, language: Language) -> Value:
    del language
    return _FIRST_YEAR + draws.below(_NUM_YEARS), 1 + draws.below(4)


def _render_quarter(language: Language, value: Any) -> str:
    year, quarter = value
    pattern = language.locale.datetime_skeletons["yQQQQ"]
    return _render(language, pattern, (year, 3 * quarter, 1))


def _draw_days(draws: Draws, language: Language) -> Value:
    start = datetime.date(*draw_date(draws, language))
    num_days = 1 + draws.below(draws.one_of(_INTERVALS))
    end = start + datetime.timedelta(days=num_days)
    return start.year, start.month, start.day, end.year, end.month, end.day


def _render_days(language: Language, value: Any) -> str:
    start, end = datetime.date(*value[:3]), datetime.date(*value[3:])
    if start.year != end.year:
        field = "y"
    else:
        field = "d" if start.month == end.month else "M"
    return render_interval(language, "yMMMd", field, start, end)


DATE_KINDS = (
    Kind("date", 5, draw_date, render_date),
    Kind("date", 5, draw_date, _render_date_and_weekday),
    Kind("day", 4, _draw_day, _render_day),
    Kind("month", 4, _draw_month, _render_month),
    Kind("quarter", 2, _draw_quarter, _render_quarter),
    Kind("days", 6, _draw_days, _render_days, parts=(("date", 3), ("date", 3))),
)
