"""A language as Unicode CLDR knows it: what it has names for, and how it writes."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Container, Iterable, Mapping

from babel import Locale, localedata
from babel.core import get_global
from babel.numbers import get_territory_currencies

from lingvo_pipe.hyperparams.suggest import did_you_mean
from lingvo_pipe.input.cldr.languages import ENGLISH, LANGUAGES
from lingvo_pipe.input.cldr.units import UNITS

# Currencies come and go; those of this day are meant.
_DAY = datetime.date(2025, 1, 1)

_SCRIPTS = (
    *("Arab", "Armn", "Beng", "Cher", "Cyrl", "Deva", "Ethi", "Geor", "Grek", "Gujr"),
    *("Guru", "Hang", "Hans", "Hant", "Hebr", "Jpan", "Khmr", "Knda", "Kore", "Laoo"),
    *("Latn", "Mlym", "Mong", "Mymr", "Orya", "Sinh", "Taml", "Telu", "Thaa", "Thai"),
    "Tibt",
)

# The digit zero of the numbering systems that are a language's first choice; the other
# nine follow it.
_ZEROS = {
    "arab": "\u0660",
    "arabext": "\u06f0",
    "beng": "\u09e6",
    "deva": "\u0966",
    "latn": "0",
    "mymr": "\u1040",
}
# Zero-width spaces, and marks of the writing's direction.
_UNSEEN = "\u061c\u200b\u200e\u200f"


class Language:
    """One language: codes of what it has words of its own for, and its digits.

    Attributes:
        locale: Babel's locale, which its functions take.
        territories: Countries and dependencies, of those with a currency.
        languages: Languages, of those with a code of two letters.
        scripts: Scripts, of those in wide use.
        currencies: Currencies, of those in use.
        unit_widths: Units, of those in `units.py`, and which form to use: `long`, or
            `short` where the long one is the same.

    Args:
        code: The name of one of Babel's locales, such as `de`.
    """

    def __init__(self, code: str) -> None:
        self.locale = Locale.parse(code)
        data = localedata.load(code)
        self.territories = _named(_territories(), data["territories"])
        self.languages = _named(_languages(), data["languages"])
        self.scripts = _named(_SCRIPTS, data["scripts"])
        self.currencies = _named(_currencies(), data["currency_names"])
        self.unit_widths = _unit_widths(data["unit_patterns"])
        zero = ord(_ZEROS[self.locale.default_numbering_system])
        digits = {ord("0") + digit: zero + digit for digit in range(10)}
        self._replaced = digits | dict.fromkeys(map(ord, _UNSEEN))

    def plain(self, text: str) -> str:
        """Returns what Babel wrote with the language's digits and with plain spaces.

        Babel writes Latin digits in all languages. CLDR's patterns have spaces of many
        widths, and characters that can't be seen, which are left out.
        """
        return " ".join(text.translate(self._replaced).split())


@functools.cache
def get_language(code: str) -> Language:
    """Returns the language; it is made once.

    Raises:
        ValueError: If the code is neither English nor of LANGUAGES.
    """
    known = (ENGLISH, *LANGUAGES)
    if code not in known:
        raise ValueError(
            f"language must be {ENGLISH} or one of LANGUAGES; got {code!r}."
            f"{did_you_mean(code, known)}"
        )
    return Language(code)


def _named(codes: Iterable[str], names: Container[str]) -> tuple[str, ...]:
    return tuple(code for code in codes if code in names)


@functools.cache
def _territories() -> tuple[str, ...]:
    unknown = "ZZ"
    with_currency = sorted(set(get_global("territory_currencies")) - {unknown})
    return _named(with_currency, Locale("en").territories)


@functools.cache
def _languages() -> tuple[str, ...]:
    known = map(str, Locale("en").languages)
    return tuple(sorted(code for code in known if len(code) == 2))


@functools.cache
def _currencies() -> tuple[str, ...]:
    of_all = [get_territory_currencies(code, _DAY) for code in _territories()]
    return tuple(sorted({currency for some in of_all for currency in some}))


def _unit_widths(patterns: Mapping[str, Mapping]) -> dict[str, str]:
    """Returns the width of each unit whose pattern isn't the international symbol's.

    Babel leaves out that CLDR takes the short form for a long one that isn't there.
    """
    root = localedata.load("root")["unit_patterns"]
    widths = {}
    for unit in UNITS:
        width = "long" if "other" in patterns[unit].get("long", {}) else "short"
        symbol = root.get(unit, {}).get("short", {}).get("other")
        if patterns[unit][width]["other"] != symbol:
            widths[unit] = width
    return widths
