"""Phrases that are dates or times: "March 4, 2031", "Mar 4 – 9, 2031", "3:30 PM"."""

import datetime
import functools
from collections.abc import Callable
from typing import Any

from babel import Locale
from babel.dates import (
    TIMEDELTA_UNITS,
    DateTimePattern,
    format_timedelta,
    get_datetime_format,
    parse_pattern,
)

from lingvo_pipe.input.cldr.language import Language
from lingvo_pipe.input.cldr.phrase_kind import Draws, Kind, Value

_FIRST_YEAR = 1900
_NUM_YEARS = 200
_FIRST_DAY = datetime.date(_FIRST_YEAR, 1, 1).toordinal()
_NUM_DAYS = datetime.date(_FIRST_YEAR + _NUM_YEARS, 1, 1).toordinal() - _FIRST_DAY
# The longest interval in days. Each holds for a third of the intervals.
_INTERVALS = (10, 60, 400)


def _renderer(
    formats: str, name: str, moment: Callable[..., Any] = datetime.date
) -> Callable[[Language, Any], str]:
    def render(language: Language, value: Any) -> str:
        pattern = getattr(language.locale, formats)[name]
        return pattern.apply(moment(*value), language.locale)

    return render


_render_date = _renderer("date_formats", "long")
_render_time = _renderer("time_formats", "short", datetime.time)


def _render_interval(
    language: Language, skeleton: str, field: str, start: Any, end: Any
) -> str:
    """Writes an interval. `field` is CLDR's letter of the largest unit that differs."""
    first, second = _interval_patterns(language.locale, skeleton, field)
    return first.apply(start, language.locale) + second.apply(end, language.locale)


@functools.cache
def _interval_patterns(
    locale: Locale, skeleton: str, field: str
) -> tuple[DateTimePattern, ...]:
    # Cached, because Babel's format_interval parses patterns at every call.
    return tuple(map(parse_pattern, locale.interval_formats[skeleton][field]))


def _draw_date(draws: Draws, language: Language) -> tuple[int, int, int]:
    date = datetime.date.fromordinal(_FIRST_DAY + draws.below(_NUM_DAYS))
    return date.year, date.month, date.day


def _draw_day(draws: Draws, language: Language) -> Value:
    return _draw_date(draws, language)[1:]


def _draw_month(draws: Draws, language: Language) -> Value:
    return _draw_date(draws, language)[:2]


def _draw_quarter(draws: Draws, language: Language) -> Value:
    return _FIRST_YEAR + draws.below(_NUM_YEARS), 1 + draws.below(4)


def _draw_days(draws: Draws, language: Language) -> Value:
    start = datetime.date(*_draw_date(draws, language))
    num_days = 1 + draws.below(draws.one_of(_INTERVALS))
    end = start + datetime.timedelta(days=num_days)
    return start.year, start.month, start.day, end.year, end.month, end.day


def _render_days(language: Language, value: Any) -> str:
    start, end = datetime.date(*value[:3]), datetime.date(*value[3:])
    if start.year != end.year:
        field = "y"
    else:
        field = "d" if start.month == end.month else "M"
    return _render_interval(language, "yMMMd", field, start, end)


def _last_month(year: int, quarter: int) -> datetime.date:
    return datetime.date(year, 3 * quarter, 1)


_SKELETONS = "datetime_skeletons"
_in_a_leap_year = functools.partial(datetime.date, 2000)
_first_day = functools.partial(datetime.date, day=1)

DATE_KINDS = (
    Kind("date", 5, _draw_date, _render_date),
    Kind("date", 5, _draw_date, _renderer("date_formats", "full")),
    Kind("day", 4, _draw_day, _renderer(_SKELETONS, "MMMMd", _in_a_leap_year)),
    Kind("month", 4, _draw_month, _renderer(_SKELETONS, "yMMMM", _first_day)),
    Kind("quarter", 2, _draw_quarter, _renderer(_SKELETONS, "yQQQQ", _last_month)),
    Kind("days", 6, _draw_days, _render_days, parts=(("date", 3), ("date", 3))),
)


_MINUTES_A_DAY = 24 * 60
_UNIT_SECONDS = dict(TIMEDELTA_UNITS)
_MAX_RELATIVE = 99


def _draw_time(draws: Draws, language: Language) -> Value:
    return divmod(draws.below(_MINUTES_A_DAY), 60)


def _draw_moment(draws: Draws, language: Language) -> Value:
    return _draw_date(draws, language) + _draw_time(draws, language)


def _render_moment(language: Language, value: Any) -> str:
    pattern = str(get_datetime_format("long", language.locale)).replace("'", "")
    date, time = _render_date(language, value[:3]), _render_time(language, value[3:])
    return pattern.replace("{0}", time).replace("{1}", date)


def _draw_hours(draws: Draws, language: Language) -> Value:
    start = draws.below(_MINUTES_A_DAY - 1)
    end = start + 1 + draws.below(_MINUTES_A_DAY - 1 - start)
    return divmod(start, 60) + divmod(end, 60)


def _render_hours(language: Language, value: Any) -> str:
    start, end = datetime.time(*value[:2]), datetime.time(*value[2:])
    # Looks at the format, because the pattern has words, which may contain an h.
    has_halves = "%(h" in language.locale.time_formats["short"].format
    hour = "h" if has_halves else "H"
    if has_halves and (start.hour < 12) != (end.hour < 12):
        field = "a"
    else:
        field = "m" if start.hour == end.hour else hour
    return _render_interval(language, f"{hour}m", field, start, end)


def _draw_relative_time(draws: Draws, language: Language) -> Value:
    count = 1 + draws.below(_MAX_RELATIVE)
    return draws.one_of((-count, count)), draws.one_of(tuple(_UNIT_SECONDS))


def _render_relative_time(language: Language, value: Any) -> str:
    count, unit = value
    return format_timedelta(
        count * _UNIT_SECONDS[unit],
        granularity=unit,
        threshold=float("inf"),  # Twelve months are not one year.
        add_direction=True,
        locale=language.locale,
    )


TIME_KINDS = (
    Kind("time", 4, _draw_time, _render_time),
    Kind("moment", 4, _draw_moment, _render_moment, parts=(("date", 3), ("time", 2))),
    Kind("hours", 3, _draw_hours, _render_hours, parts=(("time", 2), ("time", 2))),
    Kind("relative time", 9, _draw_relative_time, _render_relative_time),
)
