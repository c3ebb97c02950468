"""Phrases that are times: "3:30 PM", "March 4, 2031, 3:30 PM", "5 months ago"."""

from __future__ import annotations

import datetime
from typing import Any

from babel.dates import format_timedelta, get_datetime_format

from lingvo_pipe.input.cldr.dates import draw_date, render_date, render_interval
from lingvo_pipe.input.cldr.draws import Draws
from lingvo_pipe.input.cldr.kind import Kind, Value
from lingvo_pipe.input.cldr.language import Language

_MINUTES_A_DAY = 24 * 60

# How many seconds Babel takes for each.
_UNIT_SECONDS = {
    "year": 365 * 86400,
    "month": 30 * 86400,
    "week": 7 * 86400,
    "day": 86400,
    "hour": 3600,
    "minute": 60,
    "second": 1,
}
_MAX_RELATIVE = 99


def _draw_time(draws: Draws, language: Language) -> Value:
    del language  # All have words for all times.
    return divmod(draws.below(_MINUTES_A_DAY), 60)


def _render_time(language: Language, value: Any) -> str:
    pattern = language.locale.time_formats["short"]
    return pattern.apply(datetime.time(*value), language.locale)


def _draw_moment(draws: Draws, language: Language) -> Value:
    return draw_date(draws, language) + _draw_time(draws, language)


def _render_moment(language: Language, value: Any) -> str:
    pattern = str(get_datetime_format("long", language.locale)).replace("'", "")
    date = render_date(language, value[:3])
    return pattern.replace("{0}", _render_time(language, value[3:])).replace(
        "{1}", date
    )


def _draw_hours(draws: Draws, language: Language) -> Value:
    del language
    start = draws.below(_MINUTES_A_DAY - 1)
    end = start + 1 + draws.below(_MINUTES_A_DAY - 1 - start)
    return divmod(start, 60) + divmod(end, 60)


def _render_hours(language: Language, value: Any) -> str:
    start, end = datetime.time(*value[:2]), datetime.time(*value[2:])
    # Not in the pattern, which may have an h in its words.
    has_halves = "%(h" in language.locale.time_formats["short"].format
    hour = "h" if has_halves else "H"
    if has_halves and (start.hour < 12) != (end.hour < 12):
        field = "a"
    else:
        field = "m" if start.hour == end.hour else hour
    return render_interval(language, f"{hour}m", field, start, end)


def _draw_relative_time(draws: Draws, language: Language) -> Value:
    del language
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
