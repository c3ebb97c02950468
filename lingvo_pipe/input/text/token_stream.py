"""Rows of a stream of tokens: documents one after the other, cut to equal lengths.

    documents   a a a a a b b c c c c c ...
    rows        0 . . . 1 . . . 2 . . . ...     of T = 4 tokens

An epoch is all documents in an order of its own, cut into rows that are then shuffled
too; its last row may be shorter. Which tokens are in a row follows from its position in
the stream of rows, so going on at a later step costs nothing.

Shapes: N documents, R rows in an epoch, n documents in a batch of B rows of T tokens.
"""

from __future__ import annotations

import functools
import hashlib
from typing import NamedTuple

import numpy as np

from lingvo_pipe.input.example_order import permutation, stream_indices


class BatchSpans(NamedTuple):
    """The tokens of a batch, as spans of its documents laid end to end.

    Attributes:
        documents: int64 [n], those of the first row first.
        starts: int64 [B], where in them a row's tokens start.
        sizes: int64 [B], how many tokens a row has, up to T; 0 for padding.
    """

    documents: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray


class TokenStream:
    """Cuts documents into rows.

    Args:
        lengths: int [N], tokens in each document, at least 1.
        row_length: T.
        seed: Chooses the order; from 0 to 2**64 - 1. None: documents and rows are in
            the order of the data.
    """

    def __init__(self, lengths: np.ndarray, row_length: int, seed: int | None) -> None:
        self._lengths, self._row_length = lengths, row_length
        self._seed = seed
        self._num_tokens = int(lengths.sum(dtype=np.int64))
        # Rows of one batch are of one epoch or of two.
        self._epoch = functools.lru_cache(maxsize=2)(self._order_and_ends)

    @property
    def rows_per_epoch(self) -> int:
        """R."""
        return -(-self._num_tokens // self._row_length)

    def spans(self, first: int, batch_size: int, end: int | None = None) -> BatchSpans:
        """Returns what is in some rows of the endless stream.

        Args:
            first: The position of the first of them.
            batch_size: B.
            end: The position of the first row that is padding; None: there is none.
        """
        after = first + batch_size if end is None else min(first + batch_size, end)
        seed = None if self._seed is None else self._seed_of("rows")
        rows = stream_indices(seed, first, after, self.rows_per_epoch)
        documents: list[np.ndarray] = []
        starts, sizes = (np.zeros(batch_size, np.int64) for _ in range(2))
        laid = 0
        for place, row in enumerate(rows.tolist()):
            epoch = (first + place) // self.rows_per_epoch
            chosen, skipped, sizes[place] = self._row(epoch, row)
            starts[place] = laid + skipped
            laid += int(self._lengths[chosen].sum(dtype=np.int64))
            documents.append(chosen)
        return BatchSpans(np.concatenate(documents), starts, sizes)

    def _row(self, epoch: int, row: int) -> tuple[np.ndarray, int, int]:
        """Returns the documents of a row, the tokens to skip, and those it has."""
        order, ends = self._epoch(epoch)
        start = row * self._row_length
        stop = min(start + self._row_length, self._num_tokens)
        first, last = np.searchsorted(ends, [start, stop - 1], side="right")
        chosen = order[first : last + 1]
        begins = int(ends[first] - self._lengths[chosen[0]])
        return chosen, start - begins, stop - start

    def _order_and_ends(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the order of the documents, and where in it each ends: [N] each."""
        if self._seed is None:
            order = np.arange(len(self._lengths))
        else:
            order = permutation(self._seed_of("documents"), epoch, len(self._lengths))
        return order, np.cumsum(self._lengths[order], dtype=np.int64)

    def _seed_of(self, name: str) -> int:
        digest = hashlib.sha256(f"{self._seed} {name}".encode()).digest()
        return int.from_bytes(digest[:8], "little")
