"""Amounts, as CLDR writes them."""

import unicodedata

import pytest
from babel.numbers import format_compact_decimal

from tests.input.cldr.value_samples import kind_named, samples, write


@pytest.mark.parametrize(
    ("kind", "value", "language", "text"),
    [
        ("number", (1_234_5670,), "en", "1,234,567"),
        ("number", (12_3456,), "de", "12.345,6"),
        ("number", (12_3456,), "fr", "12 345,6"),
        ("number", (1_234_5670,), "hi", "12,34,567"),
        ("number", (12_3456,), "fa", "۱۲٬۳۴۵٫۶"),
        ("percentage", (345,), "en", "34.5%"),
        ("percentage", (340,), "de", "34 %"),
        ("percentage", (345,), "tr", "%34,5"),
        ("percentage", (345,), "fa", "۳۴٫۵٪"),
        ("quantity", (10, "length-kilometer"), "en", "1 kilometer"),
        ("quantity", (15, "length-kilometer"), "en", "1.5 kilometers"),
        ("quantity", (20, "length-kilometer"), "ru", "2 километра"),
        ("quantity", (50, "length-kilometer"), "ru", "5 километров"),
        ("quantity", (30, "length-kilometer"), "zh", "3公里"),
        ("price", (1099_98, "USD"), "en", "1,099.98 US dollars"),
        ("price", (1099_98, "EUR"), "de", "1.099,98 Euro"),
        ("price", (1100, "JPY"), "en", "1,100 Japanese yen"),
        ("round number", (1_200_000,), "hi", "12 लाख"),
        ("round number", (7_300_000,), "sw", "milioni 7.3"),
        ("round number", (1000,), "it", "mille"),
        ("round number", (2000,), "it", "2 mila"),
    ],
)
def test_amounts_are_written_as_cldr_says(kind, value, language, text):
    assert write(kind_named(kind), language, value) == text


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("en", "3 hours, 20 minutes"),
        ("de", "3 Stunden und 20 Minuten"),
        # Whose list of units Babel has in part.
        ("es", "3 horas y 20 minutos"),
        ("he", "3 שעות ו20 דקות"),
    ],
)
def test_durations_are_lists_of_units(language, text):
    value = (30, "duration-hour", 200, "duration-minute")
    assert write(kind_named("duration"), language, value) == text


@pytest.mark.parametrize("name", ["number", "percentage"])
def test_the_digits_of_all_languages_are_the_number_s(name):
    kind = kind_named(name)
    for language, value in samples(kind, 20):
        text = language.plain(kind.render(language, value))
        digits = "".join(str(unicodedata.digit(c)) for c in text if c.isdigit())
        assert int(digits) in (value[0], value[0] / 10), (language.locale, text)


def test_round_numbers_are_those_of_babel_where_it_is_right():
    kind = kind_named("round number")
    num_compared = 0
    for language, value in samples(kind, 20):
        formats = language.locale.compact_decimal_formats
        if "long" not in formats:
            continue
        if any(";" in str(p) for p in formats["long"]["other"].values()):
            continue  # Of those it writes ten times the number.
        text = kind.render(language, value)
        assert text == format_compact_decimal(
            value[0],
            format_type="long",
            locale=language.locale,
            fraction_digits=1,
            numbering_system="default",
        )
        num_compared += 1
    assert num_compared > 1500


def test_prices_have_the_currency_s_decimals():
    assert write(kind_named("price"), "en", (5_000, "KWD")) == "5.000 Kuwaiti dinars"
    assert write(kind_named("price"), "en", (5, "EUR")) == "0.05 euros"
