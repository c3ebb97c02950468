"""Sentences: functions of their number, in splits that say nothing the same."""

import unicodedata

import pytest

from lingvo_pipe.input.cldr.language import EIGHT, ENGLISH, LANGUAGES
from lingvo_pipe.input.cldr.sentences import (
    KINDS,
    Phrase,
    Sentence,
    draw_sentence,
    split_of,
)
from tests.input.cldr.value_samples import kind_named, kinds_named, samples


def sentences(split, languages=EIGHT, num_sentences=400):
    return [
        draw_sentence(language, split, index)
        for language in languages
        for index in range(num_sentences)
    ]


def test_a_sentence_is_a_function_of_its_number():
    backwards = [draw_sentence("de", "test", index) for index in range(49, -1, -1)]
    assert backwards[::-1] == [draw_sentence("de", "test", i) for i in range(50)]


def test_the_first_sentences_are_known():
    pairs = [(s.text("en"), s.text("de")) for s in sentences("train", ["de"], 2)]
    assert pairs == [
        (
            "October 1912, 54 years, 3 months, 5.12 Seychellois rupees, and 36,481.00 "
            "Peruvian soles",
            "Oktober 1912, 54 Jahre und 3 Monate, 5,12 Seychellen-Rupien und 36.481,00 "
            "Peruanische Sol",
        ),
        (
            "355.7 months or 58 meters per second",
            "355,7 Monate oder 58 Meter pro Sekunde",
        ),
    ]


@pytest.mark.parametrize("other", [("es", "train", 3), ("de", "test", 3)])
def test_languages_and_splits_have_sentences_of_their_own(other):
    assert draw_sentence(*other) != draw_sentence("de", "train", 3)


@pytest.mark.parametrize("conjunction", ["standard", "or"])
def test_phrases_are_joined_as_the_language_does(conjunction):
    phrases = tuple(
        Phrase(kind_named("territory"), (code,)) for code in ("JP", "FR", "DE")
    )
    word = {"standard": "und", "or": "oder"}[conjunction]
    text = Sentence(phrases, conjunction).text("de")
    assert text == f"Japan, Frankreich {word} Deutschland"


def test_both_sides_say_the_same():
    sentence = draw_sentence("tr", "train", 5)
    assert sentence.text("en") == "53.00 Tajikistani somonis, in 8 months, and Cyrillic"
    assert sentence.text("tr") == "53,00 Tacikistan somonisi, 8 ay sonra ve Kiril"


def test_texts_are_normal():
    for language in LANGUAGES:
        for index in range(20):
            text = draw_sentence(language, "train", index).text(language)
            assert text == unicodedata.normalize("NFC", text)
            assert text == " ".join(text.split())
            assert text


def values_by_brute_force(split):
    """Returns all dates, times and so on of a split, however they are written."""
    found = set()
    for sentence in sentences(split, num_sentences=400):
        for kind, value in sentence.phrases:
            if kind.name in ("moment", "days"):
                found.add(("date", value[:3]))
            if kind.name in ("moment", "hours"):
                found.add(("time", value[-2:]))
            if kind.name == "hours":
                found.add(("time", value[:2]))
            if kind.name == "days":
                found.add(("date", value[3:]))
            if kind.name == "duration":
                found |= {("quantity", value[:2]), ("quantity", value[2:])}
            if not kind.is_name:
                found.add((kind.name, value))
    return found


@pytest.mark.exhaustive
def test_no_value_is_of_both_splits():
    train, test = values_by_brute_force("train"), values_by_brute_force("test")
    assert len(train) > 5000
    assert len(test) > 2000
    assert not train & test


@pytest.mark.exhaustive
@pytest.mark.parametrize("language", [ENGLISH, "de", "ja"])
def test_no_text_is_of_both_splits(language):
    train, test = (
        {s.text(language) for s in sentences(split, ["de", "ja"], 2000)}
        if language == ENGLISH
        else {s.text(language) for s in sentences(split, [language], 2000)}
        for split in ("train", "test")
    )
    assert not train & test


def test_lists_of_names_have_one_split_in_any_order():
    japan, welsh = (
        Phrase(kind_named("territory"), ("JP",)),
        Phrase(kind_named("language"), ("cy",)),
    )
    contents = [
        Sentence(phrases, conjunction).contents()
        for phrases in ((japan, welsh), (welsh, japan))
        for conjunction in ("standard", "or")
    ]
    assert contents == [contents[0]] * 4
    assert len(contents[0]) == 1


def test_names_beside_other_phrases_are_in_both_splits():
    def names(split, num_sentences):
        return {
            phrase
            for sentence in sentences(split, ["de"], num_sentences)
            for phrase in sentence.phrases
            if phrase.kind.is_name
        }

    train, test = names("train", 8000), names("test", 2000)
    assert len(test - train) < 0.02 * len(test)


def test_one_of_sixteen_values_is_for_testing():
    dates = {("date", *value) for _, value in samples(kinds_named("date")[0], 100)}
    share = sum(split_of(date) == "test" for date in dates) / len(dates)
    assert 0.05 < share < 0.075


def test_all_kinds_occur_as_often_as_they_should():
    assert sum(kind.weight for kind in KINDS) == 100
    phrases = [p for s in sentences("train", num_sentences=1000) for p in s.phrases]
    for kind in KINDS:
        share = sum(phrase.kind == kind for phrase in phrases) / len(phrases)
        assert share == pytest.approx(kind.weight / 100, abs=0.01)


def test_every_kind_can_be_written_in_every_language():
    for kind in KINDS:
        for language, value in samples(kind, 10):
            assert language.plain(kind.render(language, value))
