"""Languages: their words, and their digits and spaces."""

import pytest

from lingvo_pipe.input.cldr.language import (
    EIGHT,
    ENGLISH,
    LANGUAGES,
    UNITS,
    get_language,
)
from lingvo_pipe.input.cldr.sentences import draw_sentence


def test_english_has_words_for_everything():
    english = get_language(ENGLISH)
    assert len(english.territories) == 257
    assert {"AD", "JP", "ZW"} < set(english.territories)
    assert "ZZ" not in english.territories  # The unknown territory.
    assert {"EUR", "USD", "JPY"} < set(english.currencies)
    assert "DEM" not in english.currencies  # Until 2001.
    assert tuple(english.unit_widths) == UNITS
    assert set(english.unit_widths.values()) == {"long"}


@pytest.mark.parametrize("names", ["territories", "languages", "scripts", "currencies"])
def test_no_two_things_have_one_name(names):
    # A test sentence would say what a training sentence says, of another thing.
    for code in (ENGLISH, *LANGUAGES):
        language = get_language(code)
        of_code = getattr(language.locale, names)
        codes = getattr(language, names)
        assert len({of_code[code] for code in codes}) == len(codes), code


def test_what_has_no_name_of_its_own_is_left_out():
    lao = get_language("lo")
    assert set(lao.unit_widths) < set(UNITS)
    # Lao writes the international symbol.
    assert "digital-gigabyte" not in lao.unit_widths


def test_a_long_form_that_is_the_short_one_is_found():
    chinese = get_language("zh")
    assert chinese.unit_widths["length-kilometer"] == "short"
    assert chinese.unit_widths["mass-kilogram"] == "long"


@pytest.mark.parametrize(
    ("language", "digits"),
    [
        ("de", "0123456789"),
        ("hi", "0123456789"),
        ("mr", "०१२३४५६७८९"),
        ("bn", "০১২৩৪৫৬৭৮৯"),
        ("fa", "۰۱۲۳۴۵۶۷۸۹"),
        ("sd", "٠١٢٣٤٥٦٧٨٩"),
        ("my", "၀၁၂၃၄၅၆၇၈၉"),
    ],
)
def test_digits_are_the_language_s_own(language, digits):
    assert get_language(language).plain("0123456789") == digits


def test_spaces_are_plain_and_what_is_unseen_is_left_out():
    text = " 3:30\u202fPM\u2009–\u20095:00\u00a0\u200ePM\u200b "
    assert get_language("en").plain(text) == "3:30 PM – 5:00 PM"
    joiners = "می\u200cخواهم"
    assert get_language("fa").plain(joiners) == joiners


def test_the_eight_are_among_them():
    assert len(set(EIGHT)) == 8
    assert set(EIGHT) < set(LANGUAGES)


def test_most_sentences_differ_from_the_english():
    num_sentences = 100
    for language in LANGUAGES:
        sentences = [
            draw_sentence(language, "train", index) for index in range(num_sentences)
        ]
        same = sum(s.text(language) == s.text(ENGLISH) for s in sentences)
        assert same <= 0.15 * num_sentences, language
