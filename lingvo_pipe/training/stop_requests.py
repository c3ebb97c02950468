"""Ending a run when it is asked to, with nothing lost.

SIGTERM is what schedulers of clusters send before they take a machine away, SIGINT what
Ctrl-C sends. Either asks the run to end after the step it is in. A second SIGINT ends
it at once, but for a checkpoint that is being written; a second SIGTERM changes
nothing, for schedulers may send several.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequests:
    """While used as a context manager, remembers that the process was asked to end.

    Only the main thread may handle signals; in another one nothing is changed.
    """

    def __init__(self) -> None:
        self._asked: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    @property
    def asked_by(self) -> str | None:
        """The signal that asked, such as SIGTERM; None if there was none."""
        return None if self._asked is None else self._asked.name

    def __enter__(self) -> StopRequests:
        if threading.current_thread() is threading.main_thread():
            self._before = {s: signal.signal(s, self._remember) for s in _SIGNALS}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self._asked = signal.Signals(number)
        if signal.SIGINT in self._before:
            signal.signal(signal.SIGINT, self._before.pop(signal.SIGINT))
