"""Build cache: objects that take long to build, reused by later calls."""

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import tensorflow as tf

from lingvo_pipe.core.garbage import collected_seldom

Built = TypeVar("Built")

# A warning is logged at this number of objects. A training and its evaluation need two.
# Keras needs two for each size of a mini-batch, and two again after each `compile`.
_WARN_AT = 16


class BuildCache(Generic[Built]):
    """A cache of built objects. A key has everything on which an object depends."""

    def __init__(self, name: str, hint: str):
        """Initializes an empty cache. `hint` says how to build fewer objects."""
        self._name = name
        self._hint = hint
        self._built: dict[Hashable, Built] = {}

    @property
    def built(self) -> list[Built]:
        """All objects built so far, in order."""
        return list(self._built.values())

    def get(self, key: Hashable, build: Callable[..., Built], *args: Any) -> Built:
        """Returns the object for a key. The first call builds it: `build(*args)`."""
        if key not in self._built:
            if len(self._built) == _WARN_AT:
                tf.get_logger().warning(
                    "%s was built for %d different calls; building takes long. %s",
                    self._name,
                    _WARN_AT,
                    self._hint,
                )
            with collected_seldom():
                self._built[key] = build(*args)
        return self._built[key]
