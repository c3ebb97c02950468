"""What every data set of translated sentences is, wherever it lies.

    data set, of params     ParallelFiles, TsvFile, TfdsPairs or one of your own
      | Open
    source of pairs         sentences by their numbers
      | Fetch
    SentencePairs

Shapes: K sentences of N.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np


class SentencePairs(NamedTuple):
    """Sentences and their translations; arrays [K] of bytes, in UTF-8.

    Attributes:
        source: What is to be translated.
        target: Its translation.
        source_language: The language of each source, such as `de`.
        target_language: The language of each target.
    """

    source: np.ndarray
    target: np.ndarray
    source_language: np.ndarray
    target_language: np.ndarray


class PairSource(Protocol):
    """Translated sentences, to be read in any order."""

    @property
    def num_sentences(self) -> int:
        """N."""

    def Fetch(self, numbers: np.ndarray) -> SentencePairs:
        """Returns some sentences; runs in threads of tf.data, several at a time.

        Args:
            numbers: int64 [K], each from 0 to N - 1.
        """

    def Where(self, number: int) -> str:
        """Returns where a sentence stands, for messages to the user."""


class PairDataset(Protocol):
    """A data set that is known, but need not be there yet; made of params."""

    def Open(self, data_dir: str | None) -> PairSource:
        """Returns its sentences.

        Args:
            data_dir: Where data lie; None: the data set's own default.

        Raises:
            ValueError: If the data can't be read.
        """


class JoinedPairs:
    """Several sources, one after the other; as of PairSource.

    Args:
        sources: The sources.
    """

    def __init__(self, sources: Sequence[PairSource]) -> None:
        self._sources = list(sources)
        sizes = [source.num_sentences for source in self._sources]
        self._ends = np.cumsum(sizes, dtype=np.int64)
        self._starts = self._ends - sizes

    @property
    def num_sentences(self) -> int:
        return int(self._ends[-1])

    def Fetch(self, numbers: np.ndarray) -> SentencePairs:
        joined = SentencePairs(*(np.empty(len(numbers), object) for _ in range(4)))
        places = np.searchsorted(self._ends, numbers, side="right")
        for place in np.unique(places):
            chosen = places == place
            part = self._sources[place].Fetch(numbers[chosen] - self._starts[place])
            for whole, values in zip(joined, part, strict=True):
                whole[chosen] = values
        return joined

    def Where(self, number: int) -> str:
        place = int(np.searchsorted(self._ends, number, side="right"))
        return self._sources[place].Where(int(number - self._starts[place]))
