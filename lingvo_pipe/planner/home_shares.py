"""What of a stage's cells falls to each replica, where whole cells do in turn. Pure.

cells     3  4  5  6  7        of a stage that starts at 3
replica   0  1  0  1  0        of R = 2, as in `pipeline.homes`
"""

from __future__ import annotations

from collections.abc import Sequence


class HomeShares:
    """Sums of what cells have, of every R-th cell.

    Args:
        amounts: of each cell.
        num_replicas: R.
    """

    def __init__(self, amounts: Sequence[int], num_replicas: int):
        self._num_replicas = num_replicas
        self._num_cells = len(amounts)
        self._from = [*amounts, *[0] * num_replicas]  # With every R-th cell behind it.
        for i in reversed(range(self._num_cells)):
            self._from[i] += self._from[i + num_replicas]

    def of_replicas(self, start: int, end: int) -> list[int]:
        """For each replica the sum of its cells of a stage."""
        size = self._num_replicas
        found = []
        for first in range(start, start + size):
            stop = first + max(-(-(end - first) // size), 0) * size
            found.append(self._behind(first) - self._behind(stop))
        return found

    def most(self, start: int, end: int) -> int:
        """The largest of them; it does not fall where the end grows."""
        if self._num_replicas == 1:
            return self._from[start] - self._from[end]
        return max(self.of_replicas(start, end))

    def at_least(self, start: int, end: int) -> int:
        """The largest is no less; it does not grow where the start does."""
        everything = sum(self.of_replicas(start, end))
        return -(-everything // self._num_replicas)

    def _behind(self, cell: int) -> int:
        return self._from[cell] if cell < self._num_cells else 0
