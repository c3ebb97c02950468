"""Translated sentences of one language pair in the user's text files.

    two files, line by line      one file, a tab between
    train.de     train.en        train.tsv
    Guten Tag.   Good day.       Guten Tag.<tab>Good day.
    Danke.       Thank you.      Danke.<tab>Thank you.

Shapes: K sentences of N.
"""

from __future__ import annotations

import numpy as np

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.text.sentence_pairs import SentencePairs
from lingvo_pipe.input.text.text_files import LineFile, data_path

_TAB = b"\t"


class ParallelFiles:
    """Two files whose n-th lines translate each other.

    Args:
        params: the params.

    Raises:
        ValueError: if a param is unset, or both languages are the same.
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Returns the params of the two files."""
        p = _language_params(cls)
        p.Define(
            "source_file", None, "File of the sentences to translate; within data_dir."
        )
        p.Define("target_file", None, "File of their translations, a sentence a line.")
        return p

    def __init__(self, params: InstantiableParams) -> None:
        _check_params(
            params, "source_language", "target_language", "source_file", "target_file"
        )
        self._params = params

    def Open(self, data_dir: str | None) -> FilePairs:
        """Opens the files; see `PairDataset`.

        Raises:
            ValueError: if a file is missing, empty or not UTF-8, they have different
                numbers of lines, or a line is blank.
        """
        p = self._params
        source, target = (
            LineFile(data_path(name, data_dir))
            for name in (p.source_file, p.target_file)
        )
        if len(source) != len(target):
            raise UserValueError(
                "source_file, target_file: expected files with the same number of "
                f"lines, got {source.path} with {len(source):,} and {target.path} with "
                f"{len(target):,}. Up to line {min(len(source), len(target)) + 1:,} of "
                "the longer file, a line is missing or superfluous; correct it."
            )
        _check_no_blank(source, target)
        return FilePairs((p.source_language, p.target_language), (source, target))


class TsvFile:
    """One file; each line has a sentence, a tab and its translation.

    Args:
        params: the params.

    Raises:
        ValueError: if a param is unset, or both languages are the same.
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Returns the params of the file."""
        p = _language_params(cls)
        p.Define("file", None, "File of sentences and translations; within data_dir.")
        return p

    def __init__(self, params: InstantiableParams) -> None:
        _check_params(params, "source_language", "target_language", "file")
        self._params = params

    def Open(self, data_dir: str | None) -> FilePairs:
        """Opens the files; see `PairDataset`.

        Raises:
            ValueError: if the file is missing, empty or not UTF-8, or a line does not
                hold two sentences.
        """
        p = self._params
        lines = LineFile(data_path(p.file, data_dir))
        for number in range(len(lines)):
            columns = lines[number].split(_TAB)
            if len(columns) != 2 or not all(column.strip() for column in columns):
                raise UserValueError(
                    "file: expected two sentences with a tab between them, got line "
                    f"{number + 1} of {lines.path} with {_counted(columns)}. Correct "
                    "the line."
                )
        return FilePairs((p.source_language, p.target_language), (lines,))


class FilePairs:
    """A `PairSource` of the sentences of one or two files.

    Args:
        languages: languages of source and target.
        files: one file with tabs, or two parallel files.
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
        raise UserValueError(
            f"{' and '.join(wrong)}: expected names, got "
            f"{', '.join(repr(p.Get(name)) for name in wrong)}. Set them in the params "
            f"of {p.cls.__name__}."
        )
    if p.source_language == p.target_language:
        raise UserValueError(
            "source_language and target_language: expected different languages, got "
            f"{p.source_language!r} for both. Set them in the params of "
            f"{p.cls.__name__}."
        )


def _check_no_blank(source: LineFile, target: LineFile) -> None:
    blank = np.stack([source.is_blank(), target.is_blank()])
    if not blank.any():
        return
    number = int(np.flatnonzero(blank.any(0))[0])
    paths = (source.path, target.path)
    found = " and of ".join(
        path for path, is_blank in zip(paths, blank[:, number], strict=True) if is_blank
    )
    raise UserValueError(
        "source_file, target_file: expected a sentence in every line, got a blank line "
        f"{number + 1} of {found} (the first of {blank.any(0).sum():,} blank lines). "
        "Fill it, or remove the line from both files."
    )


def _counted(columns: list[bytes]) -> str:
    blank = sum(not column.strip() for column in columns)
    noun = "column" if len(columns) == 1 else "columns"
    return f"{len(columns)} {noun}, {blank} of them blank"
