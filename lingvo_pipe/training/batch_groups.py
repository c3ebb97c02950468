"""Consecutive batches that can be trained on in one call."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import tensorflow as tf

from lingvo_pipe.nested_map import NestedMap


class BatchGroups:
    """Takes batches several at a time, as long as their shapes are the same.

    Args:
        batches: in order.
    """

    def __init__(self, batches: Iterable[NestedMap]):
        self._batches = iter(batches)
        self._ahead: list[NestedMap] = []

    def next(self, most: int) -> list[NestedMap]:
        """The next batches, at least one and at most so many; none if all are taken."""
        group = self._ahead
        self._ahead = []
        for batch in itertools.islice(self._batches, most - len(group)):
            if group and _shapes(batch) != _shapes(group[0]):
                self._ahead = [batch]
                break
            group.append(batch)
        return group


def _shapes(batch: NestedMap) -> list[tf.TensorShape]:
    return [x.shape for x in tf.nest.flatten(batch)]
