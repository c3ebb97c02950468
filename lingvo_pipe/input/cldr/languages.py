"""The languages that sentences are translated from and to: 102, and English.

They have a locale without script or territory in Babel 2.18.0 (CLDR 47) that

- does not copy its words from another language, as Nynorsk does from Norwegian;
- has its own words for dates, relative times, large numbers and "or", and for at least
  70 % each of the territories, languages, scripts, currencies and units in sentences.
"""

from babel import Locale

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
