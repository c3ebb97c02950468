"""Packing: several sentences in a row, so that little of it is padding.

A sentence has a source and a target, and a row room for S and T tokens of them. Rows
are filled one after the other, each with the longest sentence that still fits, and of
those as long with the one whose target leaves source and target room in proportion:

    source  aaaaaaabbbbccc.    S = 15
    target  aaaaabbbbbccc      T = 13

Rows are filled to 98 % where they are five times as long as most sentences, and targets
about as long as sources. A million sentences take a second or two.

Shapes: N sentences.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np


def pack(lengths: np.ndarray, capacity: tuple[int, int]) -> list[list[int]]:
    """Returns the rows, each the numbers of its sentences in ascending order.

    The rows come in the order of the longest sentence in each; so if the sentences are
    shuffled, the rows are.

    Args:
        lengths: int [N, 2], tokens of each sentence's source and target, from 1 to the
            capacity.
        capacity: (S, T).

    Raises:
        ValueError: If a sentence does not fit into a row, or has no tokens.
    """
    if lengths.size and (lengths.min() < 1 or (lengths > capacity).any()):
        raise ValueError(
            f"Sentences to be packed must have 1 to {capacity} tokens of source and "
            f"target; they have {lengths.min(0)} to {lengths.max(0)}. Leave out others."
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
    """The sentences that are in no row yet, by their lengths."""

    def __init__(self, lengths: np.ndarray, longest: int) -> None:
        sources, targets = lengths[:, 0].tolist(), lengths[:, 1].tolist()
        # By source length: target lengths, ascending, and the sentences.
        self._targets: list[list[int]] = [[] for _ in range(longest + 1)]
        self._sentences: list[list[int]] = [[] for _ in range(longest + 1)]
        for i in np.argsort(lengths[:, 1], kind="stable").tolist():
            self._targets[sources[i]].append(targets[i])
            self._sentences[sources[i]].append(i)
        # Bit n: whether there are sentences with n source tokens.
        self._present = sum(1 << n for n, found in enumerate(self._targets) if found)

    def any(self) -> bool:
        return self._present > 0

    def take(self, source: int, target: int) -> int | None:
        """Takes a sentence for the room that is left in a row; None: none fits."""
        fitting = self._present & ((2 << source) - 1)
        while fitting:
            length = fitting.bit_length() - 1
            targets = self._targets[length]
            if targets[0] <= target:
                in_proportion = length * target // source
                place = max(bisect_right(targets, in_proportion) - 1, 0)
                return self._remove(length, place)
            fitting ^= 1 << length
        return None

    def _remove(self, length: int, place: int) -> int:
        del self._targets[length][place]
        if not self._targets[length]:
            self._present ^= 1 << length
        return self._sentences[length].pop(place)
