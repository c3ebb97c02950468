"""Translated sentences in text files of the user's own, for one pair of languages.

    two files, line by line      one file, a tab between
    train.de     train.en        train.tsv
    Guten Tag.   Good day.       Guten Tag.<tab>Good day.
    Danke.       Thank you.      Danke.<tab>Thank you.

Shapes: K sentences of N.
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.text.data_path import data_path
from lingvo_pipe.input.text.line_file import LineFile
from lingvo_pipe.input.text.sentence_pairs import SentencePairs

_TAB = b"\t"


class ParallelFiles:
    """Two files: the n-th line of one translates the n-th of the other.

    Args:
        params: The params.

    Raises:
        ValueError: If a param is unset, or both languages are the same.
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Returns the params of the two files."""
        p = _language_params(cls)
        p.Define("source_file", None, "The sentences to translate; within data_dir.")
        p.Define("target_file", None, "Their translations, likewise.")
        return p

    def __init__(self, params: InstantiableParams) -> None:
        _check_params(
            params, "source_language", "target_language", "source_file", "target_file"
        )
        self._params = params

    def Open(self, data_dir: str | None) -> FilePairs:
        """As of PairDataset.

        Raises:
            ValueError: If a file is missing, empty or not UTF-8, they have different
                numbers of lines, or a line is blank.
        """
        p = self._params
        source, target = (
            LineFile(data_path(name, data_dir))
            for name in (p.source_file, p.target_file)
        )
        if len(source) != len(target):
            raise ValueError(
                "Two files of translations must have the same number of lines; "
                f"{source.path} has {len(source):,} and {target.path} {len(target):,}, "
                f"so line {min(len(source), len(target)) + 1:,} of the longer has no "
                "other beside it. Find where they part, there or before, and mend it."
            )
        _check_no_blank(source, target)
        return FilePairs((p.source_language, p.target_language), (source, target))


class TsvFile:
    """One file, each of its lines a sentence, a tab and its translation.

    Args:
        params: The params.

    Raises:
        ValueError: If a param is unset, or both languages are the same.
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Returns the params of the file."""
        p = _language_params(cls)
        p.Define("file", None, "The sentences and translations; within data_dir.")
        return p

    def __init__(self, params: InstantiableParams) -> None:
        _check_params(params, "source_language", "target_language", "file")
        self._params = params

    def Open(self, data_dir: str | None) -> FilePairs:
        """As of PairDataset.

        Raises:
            ValueError: If the file is missing, empty or not UTF-8, or a line does not
                hold two sentences.
        """
        p = self._params
        lines = LineFile(data_path(p.file, data_dir))
        for number in range(len(lines)):
            columns = lines[number].split(_TAB)
            if len(columns) != 2 or not all(column.strip() for column in columns):
                raise ValueError(
                    "A line of translations must hold two sentences with a tab between "
                    f"them; line {number + 1} of {lines.path} has "
                    f"{_counted(columns)}. Mend the line."
                )
        return FilePairs((p.source_language, p.target_language), (lines,))


class FilePairs:
    """The sentences of one or two files; as of PairSource.

    Args:
        languages: Of source and target.
        files: One with a tab in each line, or two.
    """

    def __init__(self, languages: tuple[str, str], files: tuple[LineFile, ...]) -> None:
        self._languages = [language.encode() for language in languages]
        self._files = files

    @property
    def num_sentences(self) -> int:
        return len(self._files[0])

    def Fetch(self, numbers: np.ndarray) -> SentencePairs:
        lines = [[file[number] for file in self._files] for number in numbers]
        if len(self._files) == 1:
            lines = [line.split(_TAB) for (line,) in lines]
        texts = np.array(lines, object)
        languages = [np.full(len(numbers), name, object) for name in self._languages]
        return SentencePairs(texts[:, 0], texts[:, 1], *languages)

    def Where(self, number: int) -> str:
        paths = " and ".join(file.path for file in self._files)
        return f"line {number + 1} of {paths}"


def _language_params(cls: type) -> InstantiableParams:
    p = InstantiableParams(cls)
    p.Define("source_language", None, "The language to translate from, such as 'de'.")
    p.Define("target_language", None, "The language to translate to.")
    return p


def _check_params(p: InstantiableParams, *names: str) -> None:
    wrong = [n for n in names if not isinstance(p.Get(n), str) or not p.Get(n)]
    if wrong:
        raise ValueError(
            f"{' and '.join(wrong)} must be names; got "
            f"{', '.join(repr(p.Get(name)) for name in wrong)}. Set them in the params "
            f"of {p.cls.__name__}."
        )
    if p.source_language == p.target_language:
        raise ValueError(
            "source_language and target_language must be different; both are "
            f"{p.source_language!r}. Set them in the params of {p.cls.__name__}."
        )


def _check_no_blank(source: LineFile, target: LineFile) -> None:
    blank = np.stack([source.is_blank(), target.is_blank()])
    if blank.any():
        _raise_blank(source, target, blank)


def _raise_blank(source: LineFile, target: LineFile, blank: np.ndarray) -> NoReturn:
    number = int(np.flatnonzero(blank.any(0))[0])
    paths = (source.path, target.path)
    where = " and of ".join(
        p for p, b in zip(paths, blank[:, number], strict=True) if b
    )
    raise ValueError(
        "Two files of translations must have a sentence in every line; line "
        f"{number + 1} of {where} is blank, the first of {blank.any(0).sum():,} such "
        "lines. Mend it, or leave the line out of both files."
    )


def _counted(columns: list[bytes]) -> str:
    blank = sum(not column.strip() for column in columns)
    noun = "column" if len(columns) == 1 else "columns"
    return f"{len(columns)} {noun}, {blank} of them blank"
