"""Several faults, one error; on any fault, nothing changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

# What a user's mistake raises; anything else is a bug and passes through.
MISTAKES = (AttributeError, TypeError, ValueError)


class Transaction:
    """Changes that are made all together or not at all.

    Every change goes into its own `with transaction.attempt():` block and leaves
    behind how to undo it. After `with Transaction() as transaction:` all changes
    stand, or all are undone and one error lists every fault.
    """

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self._faults: list[Exception] = []

    def on_undo(self, undo: Callable[[], None]) -> None:
        """Registers how to undo the change just made."""
        self._undo.append(undo)

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Collects the fault of one change, if it has one."""
        try:
            yield
        except MISTAKES as fault:
            self._faults.append(fault)

    def __enter__(self) -> Transaction:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and not self._faults:
            return
        for undo in reversed(self._undo):
            undo()
        if kind is not None:
            return
        first = self._faults[0]
        if len(self._faults) == 1:
            raise first
        # The first fault decides the type, so that `except AttributeError` works.
        first_kind = next(k for k in MISTAKES if isinstance(first, k))
        lines = [f"{len(self._faults)} faults; nothing was changed:"]
        raise first_kind("\n  ".join([*lines, *map(str, self._faults)])) from first
