"""The embedded data set `cldr_sentences`: translations to and from English.

Importing this module registers it with TensorFlow Datasets, for
`tfds.load("cldr_sentences/8_to_en")`. Nothing is downloaded: `sentences.py` makes the
sentences from Babel's data, so they may differ under another version of Babel.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from typing import Any

import tensorflow_datasets as tfds

from lingvo_pipe.input.cldr.languages import EIGHT, ENGLISH, LANGUAGES
from lingvo_pipe.input.cldr.sentences import draw_sentence
from lingvo_pipe.input.embedded.embedded_builder import EmbeddedBuilder

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
    """A configuration: languages, direction and sizes.

    Attributes:
        languages: the languages besides English.
        to_english: if True, English is the target; otherwise the source.
        num_train: training sentences of each language.
        num_test: test sentences of each language.
    """

    languages: tuple[str, ...] = ()
    to_english: bool = True
    num_train: int = 0
    num_test: int = 0


def _configs() -> list[Translations]:
    sets = {
        "8": ("eight languages", EIGHT, 20_000, 250),
        "all": ("102 languages", tuple(LANGUAGES), 4_000, 100),
    }
    return [
        Translations(
            name=f"{name}_to_en" if to_english else f"en_to_{name}",
            description=f"From {words} to English."
            if to_english
            else f"From English to {words}.",
            languages=languages,
            to_english=to_english,
            num_train=num_train,
            num_test=num_test,
        )
        for name, (words, languages, num_train, num_test) in sets.items()
        for to_english in (True, False)
    ]


class CldrSentences(EmbeddedBuilder):
    """The builder of `cldr_sentences`: `source`, `target` and their languages.

    Examples cycle through the languages, so a slice of a split has equally many of
    each.
    """

    name = "cldr_sentences"
    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "The first."}
    BUILDER_CONFIGS = _configs()

    def download_and_prepare(self, **kwargs: Any) -> None:
        config = self.builder_config
        num_sentences = len(config.languages) * (config.num_train + config.num_test)
        print(
            f"Making {num_sentences:,} sentences: {self.name}/{config.name}.",
            file=sys.stderr,
            flush=True,
        )
        super().download_and_prepare(**kwargs)

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description=_DESCRIPTION,
            features=tfds.features.FeaturesDict(
                {
                    "source": tfds.features.Text(),
                    "target": tfds.features.Text(),
                    "source_language": tfds.features.Text(),
                    "target_language": tfds.features.Text(),
                }
            ),
            supervised_keys=("source", "target"),
            homepage="https://cldr.unicode.org",
            citation=_CITATION,
            license="Unicode License v3",
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator]:
        del dl_manager  # Nothing is downloaded.
        config = self.builder_config
        return {
            "train": self._generate_examples("train", config.num_train),
            "test": self._generate_examples("test", config.num_test),
        }

    def _generate_examples(
        self, split: str, num_sentences: int
    ) -> Iterator[tuple[int, dict[str, str]]]:
        config = self.builder_config
        pairs = (
            (index, language)
            for index in range(num_sentences)
            for language in config.languages
        )
        for key, (index, language) in enumerate(pairs):
            sentence = draw_sentence(language, split, index)
            pair = (language, ENGLISH) if config.to_english else (ENGLISH, language)
            yield (
                key,
                {
                    "source": sentence.text(pair[0]),
                    "target": sentence.text(pair[1]),
                    "source_language": pair[0],
                    "target_language": pair[1],
                },
            )
