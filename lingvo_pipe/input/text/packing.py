"""Packing of several sentences into a row, to keep padding small.

A sentence has a source and a target; a row has room for S source and T target tokens.
Rows are filled in turn, always with the longest source that still fits. Among sources
of that length, the target that keeps the remaining room in proportion is chosen:

    source  aaaaaaabbbbccc.    S = 15
    target  aaaaabbbbbccc      T = 13

Rows five times as long as most sentences, with targets about as long as sources, are
filled to 98 %. A million sentences take a second or two.

Shapes: N sentences.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from lingvo_pipe.core.errors import UserValueError


def pack(lengths: np.ndarray, capacity: tuple[int, int]) -> list[list[int]]:
    """Returns the rows, each a list of sentence numbers in ascending order.

    Rows are sorted by their first sentence, so shuffled sentences give shuffled rows.

    Args:
        lengths: int [N, 2], source and target tokens of each sentence, from 1 to the
            capacity.
        capacity: (S, T).

    Raises:
        ValueError: if a sentence does not fit into a row, or has no tokens.
    """
    if lengths.size and (lengths.min() < 1 or (lengths > capacity).any()):
        raise UserValueError(
            f"lengths: expected 1 to {capacity} source and target tokens per sentence, "
            f"got {lengths.min(0)} to {lengths.max(0)}. Leave out other sentences."
        )
    unpacked = _Unpacked(lengths, capacity[0])
    rows = []
    while unpacked.any():
        row, (source, target) = [], capacity
        while (found := unpacked.take(source, target)) is not None:
            row.append(found)
            source -= int(lengths[found, 0])
            target -= int(lengths[found, 1])
        rows.append(row)
    rows.sort(key=lambda row: row[0])
    return [sorted(row) for row in rows]


class _Unpacked:
    """Sentences not yet in a row, indexed by length."""

    def __init__(self, lengths: np.ndarray, longest: int) -> None:
        sources, targets = lengths[:, 0].tolist(), lengths[:, 1].tolist()
        # By source length: ascending target lengths, and their sentences.
        self._targets: list[list[int]] = [[] for _ in range(longest + 1)]
        self._sentences: list[list[int]] = [[] for _ in range(longest + 1)]
        for i in np.argsort(lengths[:, 1], kind="stable").tolist():
            self._targets[sources[i]].append(targets[i])
            self._sentences[sources[i]].append(i)
        # Bit n is set if a sentence has n source tokens.
        self._present = sum(1 << n for n, found in enumerate(self._targets) if found)

    def any(self) -> bool:
        return self._present > 0

    def take(self, source: int, target: int) -> int | None:
        """Removes and returns a sentence that fits, or returns None without one."""
        fitting = self._present & ((2 << source) - 1)
        while fitting:
            length = fitting.bit_length() - 1
            targets = self._targets[length]
            if targets[0] <= target:
                in_proportion = length * target // source
                index = max(bisect_right(targets, in_proportion) - 1, 0)
                return self._remove(length, index)
            fitting ^= 1 << length
        return None

    def _remove(self, length: int, index: int) -> int:
        del self._targets[length][index]
        if not self._targets[length]:
            self._present ^= 1 << length
        return self._sentences[length].pop(index)
