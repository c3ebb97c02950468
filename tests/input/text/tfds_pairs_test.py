"""Translations of TensorFlow Datasets: texts by language, or rows with languages."""

import itertools

import numpy as np
import pytest
import tensorflow_datasets as tfds

from lingvo_pipe.input.text.tfds_pairs import TfdsPairs
from tests.input.listed_examples import ListedExamples, prepare
from tests.support.errors import fails

TEXTS = {"de": ["eins", "zwei", "drei"], "en": ["one", "two", "three"]}
ROWS = [
    ("eins", "one", "de", "en"),
    ("un", "one", "fr", "en"),
    ("one", "eins", "en", "de"),
    ("zwei", "two", "de", "en"),
]


class ByLanguage(ListedExamples):
    """`by_language`, as the data sets of WMT are."""

    def Features(self):
        return tfds.features.Translation(languages=sorted(TEXTS))

    def Examples(self):
        for texts in zip(*TEXTS.values(), strict=True):
            yield dict(zip(TEXTS, texts, strict=True))


class ByRow(ListedExamples):
    """`by_row`: languages differ from row to row."""

    NAMES = ("source", "target", "source_language", "target_language")

    def Features(self):
        return {name: tfds.features.Text() for name in self.NAMES}

    def Examples(self):
        return [dict(zip(self.NAMES, row, strict=True)) for row in ROWS]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("data"))
    for name in ("by_language", "by_row"):
        prepare(name, folder)
    return folder


def pairs_of(dataset, **values):
    return TfdsPairs.Params().Set(dataset=dataset, **values).Instantiate()


def fetched(source, numbers=None):
    numbers = range(source.num_sentences) if numbers is None else numbers
    texts = source.Fetch(np.array(numbers))
    return list(zip(*([x.decode() for x in part] for part in texts), strict=True))


def translations(source, target):
    both = zip(TEXTS[source], TEXTS[target], strict=True)
    return [(one, other, source, target) for one, other in both]


def test_texts_by_language_are_read_in_both_directions(data_dir):
    source = pairs_of("by_language").Open(data_dir)
    every = [*translations("de", "en"), *translations("en", "de")]
    assert fetched(source) == every
    for numbers in itertools.permutations(range(6), 2):
        assert fetched(source, numbers) == [every[n] for n in numbers]


def test_texts_by_language_are_read_in_the_direction_asked_for(data_dir):
    source = pairs_of("by_language", pairs=[("en", "de")]).Open(data_dir)
    assert fetched(source) == translations("en", "de")
    assert source.Where(2) == "example 2 of by_language/1.0.0, split 'train'"


def test_rows_are_read_as_they_are(data_dir):
    assert fetched(pairs_of("by_row").Open(data_dir)) == ROWS
    assert fetched(pairs_of("by_row").Open(data_dir), [3, 1]) == [ROWS[3], ROWS[1]]


def test_rows_of_some_pairs_are_read(data_dir):
    source = pairs_of("by_row", pairs=[["en", "de"], ("de", "en")]).Open(data_dir)
    assert fetched(source) == [ROWS[0], ROWS[2], ROWS[3]]
    assert source.Where(1) == "example 2 of by_row/1.0.0, split 'train'"


def test_part_of_a_split_is_read(data_dir):
    assert fetched(pairs_of("by_row", split="train[1:3]").Open(data_dir)) == ROWS[1:3]


def test_languages_are_known_without_the_data(tmp_path):
    assert pairs_of("by_language").Languages(str(tmp_path)) == ["de", "en"]
    assert pairs_of("wmt14_translate/de-en").Languages(str(tmp_path)) == ["de", "en"]
    assert pairs_of("by_row").Languages(str(tmp_path)) is None


@pytest.mark.parametrize(
    ("dataset", "pairs", "targets"),
    [
        ("by_language", None, ["de", "en"]),
        ("by_language", [("de", "en")], ["en"]),
        ("by_row", None, None),
        ("by_row", [("de", "en"), ("en", "de")], ["en", "de"]),
        ("cldr_sentences/8_to_en", None, ("en",)),
    ],
)
def test_target_languages_are_those_that_are_read(tmp_path, dataset, pairs, targets):
    given = pairs_of(dataset, pairs=pairs)
    assert given.TargetLanguages(str(tmp_path)) == targets


@pytest.mark.parametrize(
    ("dataset", "values", "path", "got"),
    [
        ("by_langage", {}, "dataset", "by_langage"),
        ("by_row", {"split": "tran"}, "split", "tran"),
        ("optdigits", {}, "dataset", "optdigits with image, label"),
        ("by_language", {"pairs": [("de", "eng")]}, "pairs", "eng"),
        ("by_row", {"pairs": [("fr", "ne")]}, "pairs", "ne"),
        ("by_row", {"pairs": [("en", "fr")]}, "pairs", [("en", "fr")]),
    ],
)
def test_what_can_not_be_read_is_named(data_dir, dataset, values, path, got):
    with fails(path=path, got=got):
        pairs_of(dataset, **values).Open(data_dir)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("pairs", x) for x in ([], ["de-en"], [("de", "de")], [("de",)], "de")],
        ("pairs", [("de", "en"), ["de", "en"]]),
        *[("dataset", None), ("split", None)],
    ],
)
def test_params_must_be_set(name, value):
    p = TfdsPairs.Params().Set(dataset="by_row").Set(**{name: value})
    with fails(path=f"TfdsPairs.{name}", got=value):
        p.Instantiate()
