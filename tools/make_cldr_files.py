"""Makes the files of sentences and vocabularies that `shipped.py` names.

python -m tools.make_cldr_files
"""

from collections.abc import Iterator
from pathlib import Path

from lingvo_pipe.input.cldr import shipped
from lingvo_pipe.input.cldr.language import EIGHT, ENGLISH, LANGUAGES
from lingvo_pipe.input.cldr.sentences import draw_sentence
from lingvo_pipe.input.text.vocabulary import train_vocabulary

# Enough for a few hundred kilobytes.
_NUM_ENGLISH = {"train": 10_000, "test": 1_000}

# The languages besides English, and the number of sentences in each, by vocabulary.
_VOCABULARIES: dict[str, tuple[tuple[str, ...], int]] = {
    shipped.EIGHT_VOCABULARY: (EIGHT, 5_000),
    shipped.ALL_VOCABULARY: (tuple(LANGUAGES), 2_000),
}


def english_sentences(split: str) -> Iterator[str]:
    """Yields the English sentences of a split."""
    for index in range(_NUM_ENGLISH[split]):
        yield draw_sentence(ENGLISH, split, index).text(ENGLISH)


def vocabulary(name: str) -> bytes:
    """Trains a vocabulary on sentences. It keeps all characters, and splits digits."""
    languages: tuple[str, ...] = ()
    texts = english_sentences("train")
    if name != shipped.ENGLISH_VOCABULARY:
        sources, num_sentences = _VOCABULARIES[name]
        texts, languages = _translated(sources, num_sentences), (ENGLISH, *sources)
    return train_vocabulary(
        texts,
        shipped.VOCABULARY_SIZES[name],
        languages,
        character_coverage=1.0,
        normalization="identity",
        split_digits=True,
    )


def main() -> None:
    """Writes all files to the package's data folder."""
    for split, name in shipped.TEXTS.items():
        lines = (f"{sentence}\n" for sentence in english_sentences(split))
        Path(shipped.shipped_file(name)).write_text("".join(lines), encoding="utf-8")
    for name in shipped.VOCABULARY_SIZES:
        Path(shipped.shipped_file(name)).write_bytes(vocabulary(name))


def _translated(languages: tuple[str, ...], num_sentences: int) -> Iterator[str]:
    for language in languages:
        for index in range(num_sentences):
            sentence = draw_sentence(language, "train", index)
            yield from map(sentence.text, (ENGLISH, language))


if __name__ == "__main__":
    main()
