"""Small texts in made-up languages, and a vocabulary of them."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.text.language_model_input import LanguageModelInput
from lingvo_pipe.input.text.text_file_pairs import ParallelFiles, TsvFile
from lingvo_pipe.input.text.translation_input import TranslationInput
from lingvo_pipe.input.text.vocabulary import train_vocabulary

VOCAB_SIZE = 120
LANGUAGES = ["aa", "bb", "cc"]
# Pair of languages -> how many sentences.
SIZES = {("aa", "bb"): 150, ("bb", "aa"): 40, ("cc", "aa"): 7}


@functools.cache
def sentences(language: str, number: int) -> list[str]:
    """Sentences of 1 to 9 words, all different."""
    random = np.random.default_rng(LANGUAGES.index(language))
    letters = list({"aa": "abcde", "bb": "éfghi", "cc": "日本語xy"}[language])
    words = ["".join(random.choice(letters, random.integers(1, 5))) for _ in range(80)]
    found: dict[str, None] = {}
    while len(found) < number:
        found[" ".join(random.choice(words, random.integers(1, 10)))] = None
    return list(found)


@functools.cache
def vocabulary_file() -> bytes:
    """The file of a vocabulary of all languages."""
    texts = [text for language in LANGUAGES for text in sentences(language, 300)]
    return train_vocabulary(texts, VOCAB_SIZE, LANGUAGES, character_coverage=1.0)


def pairs_of(source: str, target: str) -> list[tuple[str, str]]:
    """Sentences and their translations; no sentence is in two pairs of languages."""
    skipped = 200 * (source < target)
    number = SIZES[source, target]
    both = (
        sentences(name, 400)[skipped : skipped + number] for name in (source, target)
    )
    return list(zip(*both, strict=True))


def write_texts(folder: Path) -> Path:
    """Writes the vocabulary, and for each pair of languages its files."""
    (folder / "small.vocab").write_bytes(vocabulary_file())
    for source, target in SIZES:
        pairs = pairs_of(source, target)
        for column, language in enumerate((source, target)):
            lines = "".join(f"{pair[column]}\n" for pair in pairs)
            path = folder / f"{source}-{target}.{language}"
            path.write_text(lines, encoding="utf-8")
        lines = "".join(f"{one}\t{other}\n" for one, other in pairs)
        (folder / f"{source}-{target}.tsv").write_text(lines, encoding="utf-8")
    return folder


def files_of(source: str, target: str) -> InstantiableParams:
    """The params of two files."""
    return ParallelFiles.Params().Set(
        source_language=source,
        target_language=target,
        source_file=f"{source}-{target}.{source}",
        target_file=f"{source}-{target}.{target}",
    )


def tsv_of(source: str, target: str) -> InstantiableParams:
    """The params of one file."""
    return TsvFile.Params().Set(
        source_language=source, target_language=target, file=f"{source}-{target}.tsv"
    )


def translation_input(folder: Path, **values: Any) -> TranslationInput:
    """An input of all pairs, of which one is in a file with tabs."""
    p = TranslationInput.Params().Set(
        data=[files_of("aa", "bb"), tsv_of("bb", "aa"), files_of("cc", "aa")],
        data_dir=str(folder),
        vocab_file="small.vocab",
        vocab_size=VOCAB_SIZE,
        batch_size=4,
        source_length=64,
        target_length=60,
    )
    return p.Set(**values).Instantiate()


def language_model_input(folder: Path, **values: Any) -> LanguageModelInput:
    """An input of two files of sentences."""
    p = LanguageModelInput.Params().Set(
        files=["aa-bb.aa", "bb-aa.bb"],
        data_dir=str(folder),
        vocab_file="small.vocab",
        vocab_size=VOCAB_SIZE,
        batch_size=4,
        length=32,
    )
    return p.Set(**values).Instantiate()
