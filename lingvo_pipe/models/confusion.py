"""Which classes a classifier takes for which.

Shapes: K examples, N classes.
"""

from __future__ import annotations

import numpy as np


class Confusion:
    """Counts of examples by true and by predicted class.

    Attributes:
        counts: int32 [N, N]; the first dimension is the true class.
    """

    def __init__(self, num_classes: int):
        self.counts = np.zeros([num_classes, num_classes], np.int32)

    def add(self, labels: np.ndarray, predicted: np.ndarray) -> None:
        """Counts examples of the true classes `[K]` and the predicted ones `[K]`."""
        np.add.at(self.counts, (labels, predicted), 1)

    def most_confused(self, most: int) -> np.ndarray:
        """The classes of the pairs that are taken for each other most often.

        Args:
            most: how many classes at most; all of them if there are no more.

        Returns:
            int [.. most], in ascending order. Of pairs confused alike the first come
            first; none is there that was never confused, unless all are.
        """
        num_classes = len(self.counts)
        if num_classes <= most:
            return np.arange(num_classes)
        both_ways = np.triu(self.counts + self.counts.T, 1)
        pairs = np.argwhere(both_ways)
        order = np.argsort(-both_ways[tuple(pairs.T)], kind="stable")
        chosen: set[int] = set()
        for pair in pairs[order]:
            if len(chosen.union(pair.tolist())) > most:
                break
            chosen.update(pair.tolist())
        return np.array(sorted(chosen), int)

    def shares(self, classes: np.ndarray) -> np.ndarray:
        """How often each class is taken for which, in [0, 1].

        Args:
            classes: int [C].

        Returns:
            [C, C]: of all examples of the true class; 0 if there is none.
        """
        totals = np.maximum(self.counts.sum(1), 1)[classes, np.newaxis]
        return self.counts[np.ix_(classes, classes)] / totals
