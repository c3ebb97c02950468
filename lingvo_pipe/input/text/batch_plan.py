"""Which sentences make up which rows of which batch.

A stream of sentences is cut into windows, which end where its rounds do, and each
window is packed by itself. So the rows of a round hold the sentences of that round, and
a row is a function of the order and of the sentences' lengths alone.

Where a batch begins is its place: whoever knows one goes on from there, and packs
nothing of what came before but the rest of a window.

Shapes: N sentences in the data, n in a batch of B rows, S source and T target tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
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


class Place(NamedTuple):
    """Where a batch begins.

    Attributes:
        step: the batch's number, from 0.
        round: the round in which its first row is.
        window: the window of that round.
        row: the row of that window.
    """

    step: int = 0
    round: int = 0
    window: int = 0
    row: int = 0


FIRST = Place()


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

    def training(
        self, order: MixtureOrder, start_step: int, place: Place
    ) -> Iterator[tuple[Place, BatchPlan]]:
        """Yields the batches from `start_step` on, without end, and their places.

        Args:
            order: of the sentences.
            start_step: the number of the first batch.
            place: of that batch or of one before it, or `FIRST`.
        """
        rows = self._placed_rows(order, place)
        first = (start_step - place.step) * self.batch_size
        rows = itertools.islice(rows, first, None)
        for step in itertools.count(start_step):
            places, batch = zip(*itertools.islice(rows, self.batch_size), strict=True)
            yield Place(step, *places[0]), self._plan(batch)

    def one_pass(self, sentences: np.ndarray) -> Iterator[BatchPlan]:
        """Yields batches of the sentences in order; the last ends in empty rows."""
        windows = _windows(sentences)
        rows = itertools.chain.from_iterable(map(self._packed, windows))
        while batch := list(itertools.islice(rows, self.batch_size)):
            yield self._plan(batch)

    def _placed_rows(
        self, order: MixtureOrder, start: Place
    ) -> Iterator[tuple[tuple[int, int, int], Row]]:
        """Yields rows with the round, window and row that they are."""
        for number in itertools.count(start.round):
            for i, window in enumerate(_windows(order.sentences(number))):
                if (number, i) < (start.round, start.window):
                    continue
                for j, row in enumerate(self._packed(window)):
                    if (number, i, j) >= start[1:]:
                        yield (number, i, j), row

    def _packed(self, window: np.ndarray) -> list[Row]:
        numbers = window.tolist()
        if self.capacity is None:
            return [[number] for number in numbers]
        rows = pack(self.lengths[window], self.capacity)
        return [[numbers[i] for i in row] for row in rows]

    def _plan(self, rows: Sequence[Row]) -> BatchPlan:
        sizes = np.zeros(self.batch_size, np.int32)
        sizes[: len(rows)] = [len(row) for row in rows]
        sentences = np.fromiter(itertools.chain.from_iterable(rows), np.int64)
        return BatchPlan(sentences, sizes)


def _windows(sentences: np.ndarray) -> list[np.ndarray]:
    return np.array_split(sentences, -(-len(sentences) // _WINDOW_SIZE))
