"""Which sentences make up which rows of which batch.

A stream of sentences is cut into windows, which end where its rounds do, and each
window is packed by itself. So the rows of a round hold the sentences of that round, and
a row is a function of the order and of the sentences' lengths alone.

Going on at a later step packs what came before once more, without reading any of it.

Shapes: N sentences in the data, n in a batch of B rows, S source and T target tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lingvo_pipe.input.text.mixture_order import MixtureOrder
from lingvo_pipe.input.text.packing import pack

# Sentences packed together: enough for rows without gaps, and packed in milliseconds.
_WINDOW_SIZE = 4096

Row = list[int]


class BatchPlan(NamedTuple):
    """The sentences of a batch.

    Attributes:
        sentences: int64 [n], those of the first row first.
        row_sizes: int32 [B], how many of them are in each row; 0 for padding.
    """

    sentences: np.ndarray
    row_sizes: np.ndarray


@dataclass(frozen=True)
class BatchPlanner:
    """Puts sentences into rows, and rows into batches.

    Attributes:
        lengths: int [N, 2], tokens of each sentence's source and target.
        capacity: (S, T), the room in a row; None: each sentence has a row of its own.
        batch_size: B.
    """

    lengths: np.ndarray
    capacity: tuple[int, int] | None
    batch_size: int

    def training(self, order: MixtureOrder, start_step: int) -> Iterator[BatchPlan]:
        """Yields the batches from `start_step` on, without end."""
        rounds = map(order.sentences, itertools.count())
        rows = itertools.chain.from_iterable(map(self._rows, rounds))
        first = start_step * self.batch_size
        return self._batches(itertools.islice(rows, first, None))

    def one_pass(self, sentences: np.ndarray) -> Iterator[BatchPlan]:
        """Yields batches of the sentences in order; the last ends in empty rows."""
        return self._batches(self._rows(sentences))

    def _rows(self, sentences: np.ndarray) -> Iterator[Row]:
        if self.capacity is None:
            yield from ([sentence] for sentence in sentences.tolist())
            return
        num_windows = -(-len(sentences) // _WINDOW_SIZE)
        for window in np.array_split(sentences, num_windows):
            numbers = window.tolist()
            for row in pack(self.lengths[window], self.capacity):
                yield [numbers[i] for i in row]

    def _batches(self, rows: Iterable[Row]) -> Iterator[BatchPlan]:
        rows = iter(rows)
        while batch := list(itertools.islice(rows, self.batch_size)):
            sizes = np.zeros(self.batch_size, np.int32)
            sizes[: len(batch)] = [len(row) for row in batch]
            sentences = np.fromiter(itertools.chain.from_iterable(batch), np.int64)
            yield BatchPlan(sentences, sizes)
