"""Protocols of data sets of translated sentences. Shapes: K of N sentences."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams import Params


class SentencePairs(NamedTuple):
    """Sentences and their translations, in arrays `[K]` of bytes in UTF-8."""

    source: np.ndarray
    target: np.ndarray
    source_language: np.ndarray  # such as `de`
    target_language: np.ndarray


class PairSource(Protocol):
    """A source of translated sentences, with random access."""

    @property
    def num_sentences(self) -> int:
        """The number of sentences, N."""

    def Fetch(self, numbers: np.ndarray) -> SentencePairs:
        """Returns sentences by number, int64 `[K]`. Several threads may call this."""

    def Where(self, number: int) -> str:
        """Returns the location of a sentence for messages, such as a file and line."""


class PairDataset(Protocol):
    """A data set of translated sentences, which may be made before its files exist.

    The method `TargetLanguages(data_dir)` is optional. It returns the languages to
    translate to, or None if they are not known without the sentences.
    """

    def Open(self, data_dir: str | None) -> PairSource:
        """Returns the data set's sentences, from `data_dir` or from the default folder.

        Raises:
            ValueError: if the sentences cannot be read.
        """


def known_targets(
    data: PairDataset, params: Params, data_dir: str | None
) -> Sequence[str] | None:
    """Returns the target languages of a data set, or None if they are not known."""
    if "target_language" in params:
        return [params.target_language]
    try:
        named = getattr(data, "TargetLanguages", lambda _: None)(data_dir)
    except UserValueError:  # Its code may not be imported, as in another program.
        return None
    return None if named is None else list(named)


class JoinedPairs:
    """A `PairSource` that concatenates several sources."""

    def __init__(self, sources: Sequence[PairSource]) -> None:
        self._sources = list(sources)
        sizes = [source.num_sentences for source in self._sources]
        self._ends = np.cumsum(sizes, dtype=np.int64)
        self._starts = self._ends - sizes
        self.num_sentences = sum(sizes)

    def Fetch(self, numbers: np.ndarray) -> SentencePairs:
        joined = SentencePairs(*(np.empty(len(numbers), object) for _ in range(4)))
        source_of = np.searchsorted(self._ends, numbers, side="right")
        for index in np.unique(source_of):
            chosen = source_of == index
            part = self._sources[index].Fetch(numbers[chosen] - self._starts[index])
            for column, values in zip(joined, part, strict=True):
                column[chosen] = values
        return joined

    def Where(self, number: int) -> str:
        index = int(np.searchsorted(self._ends, number, side="right"))
        return self._sources[index].Where(int(number - self._starts[index]))
