"""Languages in Unicode CLDR: their digits, and their names for places and things.

Sentences are translated between English and 102 other languages. For each of these,
Babel 2.18.0 (CLDR 47) has a locale without script or territory. This locale

- does not copy its words from another language, as Nynorsk does from Norwegian,
- has its own words for dates, relative times, large numbers and "or", and for at least
  70 % each of the territories, languages, scripts, currencies and units in sentences.
"""

import datetime
import functools
from collections.abc import Container, Iterable, Mapping

from babel import Locale, localedata
from babel.core import get_global
from babel.numbers import get_territory_currencies

ENGLISH = "en"

_CODES = """
    af am ar as ast az be bew bg bn br bs ca chr cs cv cy da de dsb el es et eu fa
    fi fil fo fr frr ga gd gl gu ha he hi hr hsb hu hy ia id ie is it ja jv ka kab
    kgp kk km kn ko kok ky lij lo lt lv mk ml mn mr ms my ne nl no or pa pcm pl ps
    pt ro ru sc sd si sk sl so sq sr sv sw ta te th ti tk tr uk ur uz vec vi yrl
    yue zh
"""

# Babel's name of the locale -> English name of the language.
LANGUAGES = {code: Locale(ENGLISH).languages[code] for code in _CODES.split()}

# Languages of many families and scripts, for small models.
EIGHT = ("de", "es", "fi", "hi", "ja", "ru", "sw", "tr")

# CLDR's names: the quantity, then the unit.
UNITS = tuple(
    f"{quantity}-{unit}"
    for quantity, units in {
        "angle": "degree",
        "area": "hectare square-kilometer square-meter square-mile",
        "concentr": "karat",
        "digital": "bit byte gigabyte kilobyte megabyte",
        "duration": "century day decade hour minute month second week year",
        "electric": "ampere ohm volt",
        "energy": "joule kilocalorie kilowatt-hour",
        "frequency": "hertz megahertz",
        "graphics": "megapixel pixel",
        "length": "centimeter foot inch kilometer light-year meter mile millimeter "
        "nautical-mile",
        "mass": "gram kilogram milligram ounce pound tonne",
        "power": "horsepower kilowatt watt",
        "pressure": "hectopascal millibar",
        "speed": "kilometer-per-hour knot meter-per-second mile-per-hour",
        "temperature": "celsius fahrenheit kelvin",
        "volume": "cubic-meter cup gallon liter milliliter tablespoon teaspoon",
    }.items()
    for unit in units.split()
)


# Currencies come and go; this day's are used.
_DAY = datetime.date(2025, 1, 1)

_SCRIPTS = (
    *("Arab", "Armn", "Beng", "Cher", "Cyrl", "Deva", "Ethi", "Geor", "Grek", "Gujr"),
    *("Guru", "Hang", "Hans", "Hant", "Hebr", "Jpan", "Khmr", "Knda", "Kore", "Laoo"),
    *("Latn", "Mlym", "Mong", "Mymr", "Orya", "Sinh", "Taml", "Telu", "Thaa", "Thai"),
    "Tibt",
)

# The digit zero of each language's default numbering system; the other nine follow.
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
    """A language, with its digits and the codes of places and things that it names."""

    def __init__(self, code: str) -> None:
        self.locale = Locale.parse(code)
        data = localedata.load(code)
        # Countries and dependencies with a currency; languages with a two-letter code;
        # scripts in wide use; currencies in use.
        self.territories = _named(_territories(), data["territories"])
        self.languages = _named(_languages(), data["languages"])
        self.scripts = _named(_SCRIPTS, data["scripts"])
        self.currencies = _named(_currencies(), data["currency_names"])
        # The UNITS' forms: `long`, or `short` where CLDR has no long form.
        self.unit_widths = _unit_widths(data["unit_patterns"])
        zero = ord(_ZEROS[self.locale.default_numbering_system])
        digits = {ord("0") + digit: zero + digit for digit in range(10)}
        self._replaced = digits | dict.fromkeys(map(ord, _UNSEEN))

    def plain(self, text: str) -> str:
        """Returns `text` in the language's digits and without invisible characters."""
        return " ".join(text.translate(self._replaced).split())


@functools.cache
def get_language(code: str) -> Language:
    """Returns the Language of a code, such as `de`."""
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
    codes = map(str, Locale("en").languages)
    return tuple(sorted(code for code in codes if len(code) == 2))


@functools.cache
def _currencies() -> tuple[str, ...]:
    of_all = [get_territory_currencies(code, _DAY) for code in _territories()]
    return tuple(sorted({currency for some in of_all for currency in some}))


def _unit_widths(patterns: Mapping[str, Mapping]) -> dict[str, str]:
    """Leaves out units for which the language has only an international symbol."""
    root = localedata.load("root")["unit_patterns"]
    widths = {}
    for unit in UNITS:
        width = "long" if "other" in patterns[unit].get("long", {}) else "short"
        symbol = root.get(unit, {}).get("short", {}).get("other")
        if patterns[unit][width]["other"] != symbol:
            widths[unit] = width
    return widths
