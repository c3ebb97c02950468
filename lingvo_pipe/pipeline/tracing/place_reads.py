"""Notes of which layers a forward pass asks where they are.

Alike layers share a trace, but not one in which something follows from where a layer
is. So while FProp runs, whoever reads the path or the name of a layer is looked at. The
project's own code needs them for errors, for sums, which are named from the traced
layer on, and for random streams, to which the hash of a path is an argument. Anybody
else may make anything of them.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lingvo_pipe.layers.base_layer import BaseLayer

# Each tells where a layer is, if only by what its variables are called.
_PROPERTIES = ("path", "parent", "vars", "own_variables")
_OWN_CODE = "lingvo_pipe"
# What reads for its caller.
_BETWEEN = (__name__, BaseLayer.__module__, "lingvo_pipe.hyperparams")

_local = threading.local()


class PlaceReads:
    """What was read of the places of a layer and of those below it.

    Layers are numbered in the order of `Descendants`.

    Attributes:
        paths: numbers of the layers whose path, or what tells it, was read.
        names: of those whose `params.name` was.
    """

    def __init__(self) -> None:
        self.paths: set[int] = set()
        self.names: set[int] = set()

    @contextlib.contextmanager
    def noting(self, layer: BaseLayer) -> Iterator[None]:
        """Notes what this thread reads within, of a layer and of those below it."""
        layers = list(layer.Descendants())
        numbers = {id(below): number for number, below in enumerate(layers)}

        def note(read: BaseLayer) -> None:
            if id(read) in numbers:
                self.paths.add(numbers[id(read)])

        outer = getattr(_local, "note", None)
        _local.note = note
        try:
            with _noting_names(layers, self.names.add):
                yield
        finally:
            _local.note = outer

    def same(self, one: BaseLayer, other: BaseLayer) -> bool:
        """Whether all that was read is the same of two layers of alike structure."""
        if not self.paths and not self.names:
            return True
        pairs = list(zip(one.Descendants(), other.Descendants(), strict=True))
        return all(pairs[i][0].path == pairs[i][1].path for i in self.paths) and all(
            pairs[i][0].params.name == pairs[i][1].params.name for i in self.names
        )


class _NotedField:
    """The field of a layer's name; notes when it is read."""

    def __init__(self, field: Any, note: Callable[[], None]):
        self._field = field
        self._note = note

    def __getattr__(self, name: str) -> Any:
        if name == "value" and _is_read_by_others():
            self._note()
        return getattr(self._field, name)


@contextlib.contextmanager
def _noting_names(
    layers: Sequence[BaseLayer], note: Callable[[int], None]
) -> Iterator[None]:
    all_fields: list[dict[str, Any]] = [below.params._fields for below in layers]
    names = [fields["name"] for fields in all_fields]
    for number, fields in enumerate(all_fields):
        fields["name"] = _NotedField(names[number], functools.partial(note, number))
    try:
        yield
    finally:
        for fields, name in zip(all_fields, names, strict=True):
            fields["name"] = name


def _is_read_by_others() -> bool:
    """Whether what reads is none of the project's own code."""
    frame: Any = sys._getframe(1)
    while frame is not None and _is_in(frame, _BETWEEN):
        frame = frame.f_back
    return frame is not None and not _is_in(frame, (_OWN_CODE,))


def _is_in(frame: Any, modules: Sequence[str]) -> bool:
    name = f"{frame.f_globals.get('__name__', '')}."
    return any(name.startswith(f"{module}.") for module in modules)


def _watched(plain: property) -> property:
    """A property of layers, with its readers looked at."""

    def read(layer: BaseLayer) -> Any:
        note = getattr(_local, "note", None)
        if note is not None and _is_read_by_others():
            note(layer)
        return plain.__get__(layer)

    return property(read, doc=plain.__doc__)


for _name in _PROPERTIES:
    setattr(BaseLayer, _name, _watched(vars(BaseLayer)[_name]))
