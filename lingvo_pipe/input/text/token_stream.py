"""Rows of a stream of tokens: concatenated documents, cut to equal lengths.

    documents   a a a a a b b c c c c c ...
    rows        0 . . . 1 . . . 2 . . . ...     of T = 4 tokens

Each epoch concatenates the documents in another order and cuts them into rows, which
are shuffled too. One row of an epoch may be shorter. A row's position in the stream
determines its tokens, so a run can resume at any row at no cost.

Shapes: N documents, R rows in an epoch, n documents in a batch of B rows of T tokens.
"""

import functools
from typing import NamedTuple

import numpy as np

from lingvo_pipe.input.example_order import named_seed, permutation, stream_indices


class BatchSpans(NamedTuple):
    """The tokens of a batch: a span of its concatenated documents for each row."""

    documents: np.ndarray  # int64 [n], document numbers row by row
    starts: np.ndarray  # int64 [B], of rows in the concatenated documents
    sizes: np.ndarray  # int64 [B], tokens of each row, up to T; 0 for padding


class TokenStream:
    """An endless stream of rows of T tokens from N documents of the given lengths.

    If `seed` is None, documents and rows are in order.
    """

    def __init__(self, lengths: np.ndarray, row_length: int, seed: int | None) -> None:
        self._lengths, self._row_length, self._seed = lengths, row_length, seed
        self._num_tokens = int(lengths.sum(dtype=np.int64))
        self.rows_per_epoch = -(-self._num_tokens // row_length)
        # The rows of a batch belong to at most two epochs.
        self._epoch = functools.lru_cache(maxsize=2)(self._order_and_stops)

    def spans(self, first: int, batch_size: int, end: int | None = None) -> BatchSpans:
        """Returns the tokens of consecutive rows. Rows from `end` on are padding."""
        after = first + batch_size if end is None else min(first + batch_size, end)
        seed = None if self._seed is None else named_seed(self._seed, "rows")
        rows = stream_indices(seed, first, after, self.rows_per_epoch)
        documents: list[np.ndarray] = []
        starts, sizes = (np.zeros(batch_size, np.int64) for _ in range(2))
        num_laid_out = 0
        for number, row in enumerate(rows.tolist()):
            epoch = (first + number) // self.rows_per_epoch
            chosen, skipped, sizes[number] = self._row(epoch, row)
            starts[number] = num_laid_out + skipped
            num_laid_out += int(self._lengths[chosen].sum(dtype=np.int64))
            documents.append(chosen)
        return BatchSpans(np.concatenate(documents), starts, sizes)

    def _row(self, epoch: int, row: int) -> tuple[np.ndarray, int, int]:
        """Returns a row's documents, how many tokens to skip, and how many to read."""
        order, ends = self._epoch(epoch)
        start = row * self._row_length
        stop = min(start + self._row_length, self._num_tokens)
        first, last = np.searchsorted(ends, [start, stop - 1], side="right")
        chosen = order[first : last + 1]
        begins = int(ends[first] - self._lengths[chosen[0]])
        return chosen, start - begins, stop - start

    def _order_and_stops(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns an epoch's documents in order, and the token at which each ends."""
        if self._seed is None:
            order = np.arange(len(self._lengths))
        else:
            seed = named_seed(self._seed, "documents")
            order = permutation(seed, epoch, len(self._lengths))
        return order, np.cumsum(self._lengths[order], dtype=np.int64)
