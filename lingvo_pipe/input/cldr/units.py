"""The units of measurement that sentences speak of: those of everyday life."""

from __future__ import annotations

# As CLDR calls them: of what, then the unit.
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
