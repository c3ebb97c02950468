"""What takes long to build: built at its first use, and kept for the next."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import tensorflow as tf

Built = TypeVar("Built")

# Beyond so many it looks like an oversight; a training and its evaluation make two.
_MANY = 8


class BuiltOnce(Generic[Built]):
    """What has been built, by all that it depends on."""

    def __init__(self, name: str, advice: str):
        """Initialises it, empty.

        Args:
            name: of what is built, for the warning of many.
            advice: a sentence on how to have fewer built.
        """
        self._name = name
        self._advice = advice
        self._built: dict[Hashable, Built] = {}

    @property
    def built(self) -> list[Built]:
        """What has been built, in order."""
        return list(self._built.values())

    def get(self, key: Hashable, build: Callable[[], Built]) -> Built:
        """What is there for a key; if there is nothing, what `build` makes."""
        if key not in self._built:
            self._warn_of_many()
            self._built[key] = build()
        return self._built[key]

    def _warn_of_many(self) -> None:
        if len(self._built) == _MANY:
            tf.get_logger().warning(
                "%s was built for %d different calls, each kept; building takes long. "
                "%s",
                self._name,
                _MANY,
                self._advice,
            )
