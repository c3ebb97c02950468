"""Batch plans: the sentences of each row, and positions from which training resumes.

Training reads sentences in rounds, each of as many sentences as the data have: see
`mixture_order`. A round is cut into windows of thousands of sentences. Each window is
packed into rows by itself. So a row depends only on the order and on the sentences'
lengths, and a resumed run repacks at most one window.

Rows are filled in turn. The next sentence is always one with the longest source that
still fits. Among these sentences, it is the one whose target takes about the same share
of the remaining room as its source:

    source  aaaaaaabbbbccc.    S = 15
    target  aaaaabbbbbccc      T = 13

Rows five times as long as most sentences are filled to 98 %. A million sentences take a
second or two. Shapes: N sentences in the data, n in a batch of B rows.
"""

import itertools
import json
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lingvo_pipe.input.data_fingerprint import DataFingerprint
from lingvo_pipe.input.text.mixture_order import MixtureOrder

# Sentences packed together: enough for rows without gaps, and packed in milliseconds.
_WINDOW_SIZE = 4096

Row = list[int]


class BatchPlan(NamedTuple):
    """The sentences of a batch, row by row."""

    sentences: np.ndarray  # int64 [n], sentence numbers row by row
    row_sizes: np.ndarray  # int32 [B], sentences in each row; 0 for padding


class Position(NamedTuple):
    """The position of a training batch in the data.

    Batch `step` begins at row `row` of window `window` of round `round`, all from 0.
    """

    step: int = 0
    round: int = 0
    window: int = 0
    row: int = 0


FIRST = Position()


@dataclass(frozen=True)
class BatchPlanner:
    """A packer of sentences into rows, and of rows into batches."""

    lengths: np.ndarray  # int [N, 2], source and target tokens of each sentence
    capacity: tuple[int, int] | None  # (S, T); if None, a row for each sentence
    batch_size: int

    def training(
        self, order: MixtureOrder, start_step: int, position: Position
    ) -> Iterator[tuple[Position, BatchPlan]]:
        """Yields the positions and plans of training batches from `start_step` on.

        `position` is the position of that or an earlier batch, where packing begins.
        """
        rows = self._positioned_rows(order, position)
        first = (start_step - position.step) * self.batch_size
        rows = itertools.islice(rows, first, None)
        for step in itertools.count(start_step):
            of_batch = itertools.islice(rows, self.batch_size)
            positions, batch = zip(*of_batch, strict=True)
            yield Position(step, *positions[0]), self._plan(batch)

    def one_pass(self, sentences: np.ndarray) -> Iterator[BatchPlan]:
        """Yields the plans of batches with each of `sentences` once, in order."""
        windows = _windows(sentences)
        rows = itertools.chain.from_iterable(map(self._packed, windows))
        while batch := list(itertools.islice(rows, self.batch_size)):
            yield self._plan(batch)

    def _positioned_rows(
        self, order: MixtureOrder, start: Position
    ) -> Iterator[tuple[tuple[int, int, int], Row]]:
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


class PlanPositions:
    """The positions of recent batches, and their text form for checkpoints."""

    def __init__(self, planner: BatchPlanner, order: MixtureOrder):
        self._fingerprint = _fingerprint(planner, order)
        self._positions: dict[int, Position] = {}

    def add(self, position: Position) -> None:
        """Records the position of a batch, which training may not have read yet."""
        self._positions[position.step] = position

    def text_before(self, step: int) -> str:
        """Returns the position of the batch before `step` as text, or "" if unknown."""
        position = self._positions.get(step - 1)
        if position is None:
            return ""
        # A copy, because a thread of tf.data may add positions.
        for old in list(self._positions):
            if old < position.step:
                del self._positions[old]
        return json.dumps([self._fingerprint.text, *position])

    def read(self, text: str, step: int) -> Position:
        """Returns the position that `text_before` wrote, to continue at `step`.

        Returns `FIRST` if the text is "", or from a later step or other data or params.
        """
        if text:
            fingerprint, *numbers = json.loads(text)
            position = Position(*numbers)
            if self._fingerprint.check(fingerprint) and position.step <= step:
                return position
        return FIRST


def _fingerprint(planner: BatchPlanner, order: MixtureOrder) -> DataFingerprint:
    settings = (
        planner.capacity,
        planner.batch_size,
        order.temperature,
        order.seed,
        order.shuffle,
        sorted(order.members),
    )
    arrays = [planner.lengths, *(order.members[name] for name in sorted(order.members))]
    return DataFingerprint(settings, arrays)


def pack(lengths: np.ndarray, capacity: tuple[int, int]) -> list[list[int]]:
    """Packs sentences into rows, and returns the sentence numbers of each row.

    Numbers ascend within a row, and rows ascend by their first numbers. `lengths`, int
    `[N, 2]`, are source and target tokens, from 1 to the capacity, (S, T).
    """
    unpacked = _Unpacked(lengths, capacity[0])
    rows = []
    while unpacked.present:
        row, (source, target) = [], capacity
        while (number := unpacked.take(source, target)) is not None:
            row.append(number)
            source -= int(lengths[number, 0])
            target -= int(lengths[number, 1])
        rows.append(row)
    rows.sort(key=lambda row: row[0])
    return [sorted(row) for row in rows]


class _Unpacked:
    """Sentences not yet in a row. Bit n of `present` is 1 if a source has n tokens."""

    def __init__(self, lengths: np.ndarray, longest: int) -> None:
        # By source length: ascending target lengths, with their sentences.
        self._by_source: list[list[tuple[int, int]]] = [[] for _ in range(longest + 1)]
        pairs = lengths.tolist()
        for i in np.argsort(lengths[:, 1], kind="stable").tolist():
            source, target = pairs[i]
            self._by_source[source].append((target, i))
        self.present = sum(
            1 << n for n, sentences in enumerate(self._by_source) if sentences
        )

    def take(self, source: int, target: int) -> int | None:
        """Removes the best sentence that fits, and returns its number or else None."""
        fitting = self.present & ((2 << source) - 1)
        while fitting:
            length = fitting.bit_length() - 1
            sentences = self._by_source[length]
            if sentences[0][0] <= target:
                in_proportion = (length * target // source, math.inf)
                _, taken = sentences.pop(
                    max(bisect_right(sentences, in_proportion) - 1, 0)
                )
                if not sentences:
                    self.present ^= 1 << length
                return taken
            fitting ^= 1 << length
        return None
