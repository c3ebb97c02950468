"""Phrases that are quantities: "3.5 miles", "12 thousand", "34%", "20.00 euros"."""

from decimal import Decimal
from typing import Any

from babel.numbers import (
    format_currency,
    format_decimal,
    format_percent,
    get_currency_precision,
)
from babel.units import format_unit

from lingvo_pipe.input.cldr.language import Language
from lingvo_pipe.input.cldr.phrase_kind import Draws, Kind, Value

_MAX_DIGITS = 7  # Of a plain number.
_MAX_POWER = 10  # Of a round number: 99 * 10**10 is just below a trillion.

# A larger and a smaller unit of time, and the largest number of the smaller one.
_DURATIONS = (
    ("duration-year", "duration-month", 11),
    ("duration-week", "duration-day", 6),
    ("duration-day", "duration-hour", 23),
    ("duration-hour", "duration-minute", 59),
    ("duration-minute", "duration-second", 59),
)


def _draw_number(draws: Draws, language: Language) -> Value:
    """Returns a random number in tenths, in a tuple: (35,) stands for 3.5."""
    number = 1 + draws.below(10 ** (1 + draws.below(_MAX_DIGITS)))
    return (10 * number + _draw_tenth(draws),)


def _draw_tenth(draws: Draws) -> int:
    return draws.below(10) if draws.below(3) == 0 else 0


def _from_tenths(tenths: int) -> int | Decimal:
    # Plural forms depend on whether a number has decimals.
    return tenths // 10 if tenths % 10 == 0 else Decimal(tenths) / 10


def _render_number(language: Language, value: Any) -> str:
    number = _from_tenths(value[0])
    return format_decimal(number, locale=language.locale, numbering_system="default")


def _draw_round_number(draws: Draws, language: Language) -> Value:
    return ((1 + draws.below(99)) * 10 ** (3 + draws.below(_MAX_POWER - 2)),)


def _render_round_number(language: Language, value: Any) -> str:
    """Writes "12 thousand", or plain digits if the language has no such words."""
    number, locale = value[0], language.locale
    formats = locale.compact_decimal_formats
    # CLDR uses the short form where a long one is missing.
    patterns = formats["long"] if "long" in formats else formats["short"]
    powers = [int(power) for power in patterns["other"] if int(power) <= number]
    pattern = patterns["other"][str(max(powers))] if powers else None
    if pattern is None or pattern.pattern == "0":
        return _render_number(language, (10 * number,))
    # One of CLDR's zeros is the power itself. Babel's format_compact_decimal also
    # counts the zeros of the pattern for negative numbers, and is ten times too high.
    zeros = pattern.number_pattern.count("0")
    scaled = Decimal(number) / (max(powers) // 10 ** (zeros - 1))
    form = "1" if scaled == 1 and "1" in patterns else locale.plural_form(scaled)
    pattern = patterns.get(form, {}).get(str(max(powers)), pattern)
    return pattern.apply(
        scaled, locale, decimal_quantization=False, numbering_system="default"
    )


def _draw_percentage(draws: Draws, language: Language) -> Value:
    return (10 * (1 + draws.below(200)) + _draw_tenth(draws),)


def _render_percentage(language: Language, value: Any) -> str:
    text = format_percent(
        Decimal(value[0]) / 1000,
        locale=language.locale,
        decimal_quantization=False,
        numbering_system="default",
    )
    symbols = language.locale.number_symbols[language.locale.default_numbering_system]
    # Babel writes the pattern's percent sign instead of the language's.
    return text.replace("%", symbols.get("percentSign", "%"))


def _draw_quantity(draws: Draws, language: Language) -> Value:
    number = 1 + draws.below(draws.one_of((10, 100, 1000)))
    unit = draws.one_of(tuple(language.unit_widths))
    return 10 * number + _draw_tenth(draws), unit


def _render_quantity(language: Language, value: Any) -> str:
    tenths, unit = value
    width: Any = language.unit_widths[unit]
    number, locale = _from_tenths(tenths), language.locale
    return format_unit(number, unit, width, locale=locale, numbering_system="default")


def _draw_duration(draws: Draws, language: Language) -> Value:
    durations = [
        duration
        for duration in _DURATIONS
        if {*duration[:2]} <= set(language.unit_widths)
    ]
    larger, smaller, maximum = draws.one_of(durations)
    return 10 * (1 + draws.below(99)), larger, 10 * (1 + draws.below(maximum)), smaller


def _render_duration(language: Language, value: Any) -> str:
    parts = [_render_quantity(language, part) for part in (value[:2], value[2:])]
    patterns = language.locale.list_patterns
    # CLDR falls back to `standard` for each pattern missing in `unit`; Babel's
    # format_list only if all are missing.
    pair = patterns.get("unit", {}).get("2", patterns["standard"]["2"])
    return pair.format(*parts)


def _draw_price(draws: Draws, language: Language) -> Value:
    currency = draws.one_of(language.currencies)
    smallest = 10 ** get_currency_precision(currency)
    main_units = 1 + draws.below(10 ** (1 + draws.below(5)))
    return main_units * smallest + draws.one_of((0, draws.below(smallest))), currency


def _render_price(language: Language, value: Any) -> str:
    number, currency = value
    return format_currency(
        Decimal(number).scaleb(-get_currency_precision(currency)),
        currency,
        locale=language.locale,
        format_type="name",
        numbering_system="default",
    )


QUANTITY_KINDS = (
    Kind("number", 2, _draw_number, _render_number),
    Kind("round number", 5, _draw_round_number, _render_round_number),
    Kind("percentage", 3, _draw_percentage, _render_percentage),
    Kind("quantity", 12, _draw_quantity, _render_quantity),
    Kind("duration", 4, _draw_duration, _render_duration, parts=(("quantity", 2),) * 2),
    Kind("price", 8, _draw_price, _render_price),
)
