"""Translations of TensorFlow Datasets: texts by language, or rows with languages."""

import itertools
import re

import numpy as np
import pytest
import tensorflow_datasets as tfds

from lingvo_pipe.input.text.tfds_pairs import TfdsPairs

TEXTS = {"de": ["eins", "zwei", "drei"], "en": ["one", "two", "three"]}
ROWS = [
    ("eins", "one", "de", "en"),
    ("un", "one", "fr", "en"),
    ("one", "eins", "en", "de"),
    ("zwei", "two", "de", "en"),
]


class ByLanguage(tfds.core.GeneratorBasedBuilder):
    """`by_language`, as the data sets of WMT are."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = tfds.features.Translation(languages=sorted(TEXTS))
        return tfds.core.DatasetInfo(
            builder=self, features=features, disable_shuffling=True
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for number, texts in enumerate(zip(*TEXTS.values(), strict=True)):
            yield number, dict(zip(TEXTS, texts, strict=True))


class ByRow(tfds.core.GeneratorBasedBuilder):
    """`by_row`: languages differ from row to row."""

    VERSION = tfds.core.Version("1.0.0")
    NAMES = ("source", "target", "source_language", "target_language")

    def _info(self):
        features = {name: tfds.features.Text() for name in self.NAMES}
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(features),
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for number, row in enumerate(ROWS):
            yield number, dict(zip(self.NAMES, row, strict=True))


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("data"))
    for name in ("by_language", "by_row"):
        builder = tfds.builder(name, data_dir=folder)
        builder.download_and_prepare(file_format="array_record")
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
    ("dataset", "values", "message"),
    [
        ("by_langage", {}, "dataset.*'by_langage'.*'by_language'"),
        ("by_row", {"split": "tran"}, "split.*by_row.*'tran'.*'train'"),
        ("optdigits", {}, "dataset.*source, target,.*optdigits.*image, label"),
        (
            "by_language",
            {"pairs": [("de", "eng")]},
            "pairs.*by_language.*de, en.*'eng'.*'en'",
        ),
        ("by_row", {"pairs": [("fr", "ne")]}, "pairs.*by_row.*'ne'.*'en'"),
        ("by_row", {"pairs": [("en", "fr")]}, r"pairs.*by_row.*\[\('en', 'fr'\)\]"),
    ],
)
def test_what_can_not_be_read_is_named(data_dir, dataset, values, message):
    with pytest.raises(ValueError, match=message):
        pairs_of(dataset, **values).Open(data_dir)


def test_a_data_set_that_is_not_prepared_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"by_row.* prepare --dataset=by_row "):
        pairs_of("by_row").Open(str(tmp_path))


@pytest.mark.parametrize("pairs", [[], ["de-en"], [("de", "de")], [("de",)], "de"])
def test_pairs_must_be_pairs(pairs):
    value = re.escape(repr(pairs))
    with pytest.raises(ValueError, match=f"pairs.*None.*{value}.*TfdsPairs"):
        pairs_of("by_row", pairs=pairs)


@pytest.mark.parametrize("name", ["dataset", "split"])
def test_names_must_be_set(name):
    p = TfdsPairs.Params().Set(dataset="by_row").Set(**{name: None})
    with pytest.raises(ValueError, match=f"{name}.*None.*TfdsPairs"):
        p.Instantiate()
