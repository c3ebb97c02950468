"""Translated sentences of one language pair in the user's text files.

two files, line by line      one file, a tab between
train.de     train.en        train.tsv
Guten Tag.   Good day.       Guten Tag.<tab>Good day.
"""

from typing import ClassVar

import numpy as np

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.hyperparams.param_rules import NAME, Rule, check_params
from lingvo_pipe.input.text.sentence_pairs import SentencePairs
from lingvo_pipe.input.text.text_files import LineFile, data_path

_TAB = b"\t"


class _TextFiles:
    FILES: ClassVar[tuple[str, ...]]

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = InstantiableParams(cls)
        text = "The language to translate from, such as 'de'."
        p.Define("source_language", None, text)
        p.Define("target_language", None, "The language to translate to.")
        return p

    def __init__(self, params: InstantiableParams) -> None:
        p = self._params = params
        names = ("source_language", "target_language", *self.FILES)
        check_params(p, dict.fromkeys(names, NAME))
        expected = f"another language than source_language={p.source_language!r}"
        differs = Rule(lambda x: x != p.source_language, expected)
        check_params(p, {"target_language": differs})
        self._languages = (p.source_language, p.target_language)


class ParallelFiles(_TextFiles):
    """A data set of two text files, whose n-th lines translate each other."""

    FILES = ("source_file", "target_file")

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define(
            "source_file", None, "File of the sentences to translate; within data_dir."
        )
        p.Define("target_file", None, "File of their translations, a sentence a line.")
        return p

    def Open(self, data_dir: str | None) -> "FilePairs":
        """Opens the two files.

        Raises:
            ValueError: if a file is missing or has a blank line, or the lengths differ.
        """
        source, target = (
            LineFile(data_path(self._params.Get(name), data_dir)) for name in self.FILES
        )
        if len(source) != len(target):
            raise UserValueError(
                path="source_file, target_file",
                expected="the same number of lines",
                got=Words(
                    f"{len(source):,} in {source.path} and {len(target):,} in "
                    f"{target.path}"
                ),
                hint=f"Up to line {min(len(source), len(target)) + 1:,} of the longer "
                "file, a line is missing or superfluous.",
            )
        blank = np.stack([source.is_blank(), target.is_blank()])
        numbers = np.flatnonzero(blank.any(0))
        if len(numbers):
            paths = np.array([source.path, target.path])[blank[:, numbers[0]]]
            raise UserValueError(
                path="source_file, target_file",
                expected="a sentence in every line",
                got=Words(
                    f"a blank line {numbers[0] + 1} of {' and of '.join(paths)} (the "
                    f"first of {len(numbers):,})"
                ),
                hint="Fill it, or remove the line from both files.",
            )
        return FilePairs(self._languages, (source, target))


class TsvFile(_TextFiles):
    """A data set of one text file: a line is a sentence, a tab and the translation."""

    FILES = ("file",)

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("file", None, "File of sentences and translations; within data_dir.")
        return p

    def Open(self, data_dir: str | None) -> "FilePairs":
        """Opens the file. Raises ValueError if a line does not have two sentences."""
        lines = LineFile(data_path(self._params.file, data_dir))
        for number in range(len(lines)):
            columns = lines[number].split(_TAB)
            num_blank = sum(not column.strip() for column in columns)
            if len(columns) != 2 or num_blank:
                raise UserValueError(
                    path="file",
                    expected="two sentences with a tab between them in every line",
                    got=Words(
                        f"line {number + 1} of {lines.path} with {len(columns)} "
                        f"column{'s' * (len(columns) > 1)}, {num_blank} of them blank"
                    ),
                )
        return FilePairs(self._languages, (lines,))


class FilePairs:
    """A `PairSource` of the sentences of one file with tabs, or of two files."""

    def __init__(self, languages: tuple[str, str], files: tuple[LineFile, ...]) -> None:
        self._languages = [language.encode() for language in languages]
        self._files = files
        self.num_sentences = len(files[0])

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
