"""Follows a run from another process, checkpoint by checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from lingvo_pipe.training.checkpoint_files import steps_in

_POLL_SECONDS = 1.0


def new_checkpoints(
    directory: Path,
    last_step: Callable[[], int | None],
    patience_seconds: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[int]:
    """Yields the newest checkpoint's step whenever that is a new one.

    Of those that come while one is in use, only the last is seen. It ends with the
    run's last step, or when nothing new has come for some time: no trainer may be
    there any more.

    Args:
        directory: where the checkpoints lie, or will.
        last_step: returns that of the run; None as long as it has not begun.
        patience_seconds: for how long to wait for a new one.
        clock: returns the time in seconds.
        sleep: waits for so many seconds.
    """
    seen, since = -1, clock()
    while clock() - since <= patience_seconds:
        newest = max(steps_in(directory), default=-1)
        if newest > seen:
            seen = newest
            yield newest
            since = clock()
            continue
        last = last_step()
        if last is not None and seen >= last:
            return
        sleep(_POLL_SECONDS)
