"""Records the layers whose path or name a forward pass reads.

Identical layers share one trace, unless the trace depends on a layer's path or name. So
the properties of `BaseLayer` that reveal the path (`path`, `parent`, `vars`,
`own_variables`), and the param `name`, record each read:

    reads = PlaceReads()
    with reads.recording(layer):
        layer.FProp(theta, x)
    reads.paths, reads.names      # numbers of these layers

The project's own layers need their path in FProp only for errors, for names of sums and
for random streams. A trace takes the hash of the path for random streams as an
argument. So these layers use `_path`, which records nothing.
"""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any


class PlaceReads:
    """The layers whose path or name was read, as numbers in order of `Descendants`."""

    def __init__(self) -> None:
        self.paths: set[int] = set()
        self.names: set[int] = set()
        self._numbers: dict[int, int] = {}

    @contextlib.contextmanager
    def recording(self, layer: Any) -> Iterator[None]:
        """Records the layers whose path or name is read within this context.

        Only reads by this thread count, and only of `layer` and the layers below it.
        """
        self._numbers = {id(x): i for i, x in enumerate(layer.Descendants())}
        token = _open.set(self)
        try:
            yield
        finally:
            _open.reset(token)


_open: contextvars.ContextVar[PlaceReads | None] = contextvars.ContextVar(
    "place_reads", default=None
)


def note_path(layer: Any, of_name: bool = False) -> None:
    """Records a read of a layer's path or, if `of_name`, a read of only its name."""
    reads = _open.get()
    if reads is not None and id(layer) in reads._numbers:
        numbers = reads.names if of_name else reads.paths
        numbers.add(reads._numbers[id(layer)])
