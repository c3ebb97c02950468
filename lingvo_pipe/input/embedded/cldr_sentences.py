"""The embedded data set `cldr_sentences`: translations to and from English.

Importing this module registers the data set, so that tfds finds it:
`tfds.load("cldr_sentences/8_to_en")`. The sentences are made from Babel's data, so they
may differ under another version of Babel.
"""

import dataclasses
import itertools
import sys
from collections.abc import Iterator
from typing import Any

import tensorflow_datasets as tfds

from lingvo_pipe.input.cldr.language import EIGHT, ENGLISH, LANGUAGES
from lingvo_pipe.input.cldr.sentences import draw_sentence
from lingvo_pipe.input.embedded.embedded_builder import EmbeddedBuilder

_FIELDS = ("source", "target", "source_language", "target_language")

_DESCRIPTION = """\
Dates, times, quantities, prices, names and lists of them, as the Unicode Common Locale
Data Repository (CLDR) writes them in each language, through Babel: the same value
written in two languages is a sentence and its translation. Test sentences share no
content with training sentences: each date, quantity and so on is in one split. Names of
territories, languages and scripts are in both, but no list of them is.
"""

_CITATION = """\
@misc{cldr,
  title = {Unicode Common Locale Data Repository},
  author = {{Unicode, Inc.}},
  url = {https://cldr.unicode.org},
}
"""


@dataclasses.dataclass(eq=False)
class Translations(tfds.core.BuilderConfig):
    """A configuration of the data set: languages, direction and sizes."""

    languages: tuple[str, ...] = ()  # besides English
    to_english: bool = True  # if False, from English
    num_train: int = 0  # training sentences of each language
    num_test: int = 0  # test sentences of each language


def _configs() -> list[Translations]:
    sets = {
        "8": ("eight languages", EIGHT, 20_000, 250),
        "all": ("102 languages", tuple(LANGUAGES), 4_000, 100),
    }
    return [
        Translations(
            name=f"{name}_to_en" if to_english else f"en_to_{name}",
            description=f"From {words if to_english else 'English'} to "
            f"{'English' if to_english else words}.",
            languages=languages,
            to_english=to_english,
            num_train=num_train,
            num_test=num_test,
        )
        for name, (words, languages, num_train, num_test) in sets.items()
        for to_english in (True, False)
    ]


class CldrSentences(EmbeddedBuilder):
    """The tfds builder of `cldr_sentences`. Examples cycle through the languages."""

    name = "cldr_sentences"
    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "The first."}
    BUILDER_CONFIGS = _configs()

    @property
    def target_languages(self) -> tuple[str, ...]:
        """The languages to translate to, which the features do not tell."""
        config = self.builder_config
        return (ENGLISH,) if config.to_english else config.languages

    def download_and_prepare(self, **kwargs: Any) -> None:
        config = self.builder_config
        num_sentences = len(config.languages) * (config.num_train + config.num_test)
        text = f"Making {num_sentences:,} sentences: {self.name}/{config.name}."
        print(text, file=sys.stderr, flush=True)
        super().download_and_prepare(**kwargs)

    def _info(self) -> tfds.core.DatasetInfo:
        return self._embedded_info(
            {name: tfds.features.Text() for name in _FIELDS},
            description=_DESCRIPTION,
            homepage="https://cldr.unicode.org",
            citation=_CITATION,
            license="Unicode License v3",
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator]:
        config = self.builder_config
        sizes = {"train": config.num_train, "test": config.num_test}
        return {name: self._generate_examples(name, n) for name, n in sizes.items()}

    def _generate_examples(
        self, split: str, num_sentences: int
    ) -> Iterator[tuple[int, dict[str, str]]]:
        config = self.builder_config
        pairs = itertools.product(range(num_sentences), config.languages)
        for key, (index, language) in enumerate(pairs):
            sentence = draw_sentence(language, split, index)
            pair = (language, ENGLISH) if config.to_english else (ENGLISH, language)
            values = (*map(sentence.text, pair), *pair)
            yield key, dict(zip(_FIELDS, values, strict=True))
