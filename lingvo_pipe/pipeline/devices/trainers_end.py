"""Has a worker end with its trainer, where a scheduler has started both.

A scheduler's job is over when all its tasks are, and nobody else ends its workers. A
trainer that ends tells them (`dismissal`); one that was killed is missed after a while.
No TensorFlow.
"""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable

from lingvo_pipe.pipeline.devices.cluster_spec import split_address

# Seconds in which a trainer starts, or one that was lost does so again, beside those
# for which it waits for workers; and for which one that was told to end, as its workers
# were, may be away.
_TO_START = 300.0
_TO_CLOSE = 2.0
_PAUSE = 1.0


def await_trainers_end(
    trainer: str, is_dismissed: Callable[[], bool], patience: float
) -> str:
    """Waits until a trainer has come and gone; returns a line that says so.

    A scheduler that ends a job signals all its tasks at once. A worker that has a
    trainer then stays until that has saved its step and ended.

    Args:
        trainer: its address.
        is_dismissed: whether it has said that it ends.
        patience: seconds for which it waits for its workers.

    Raises:
        ConnectionError: if no trainer comes.
    """
    is_told = threading.Event()
    previous = signal.signal(signal.SIGTERM, lambda *unused: is_told.set())
    try:
        seen = end_of_trainer(
            lambda: _answers(trainer), is_told.is_set, is_dismissed, patience
        )
    finally:
        signal.signal(signal.SIGTERM, previous)
    if seen or is_told.is_set():
        return f"The trainer at {trainer} has ended." if seen else "Told to end."
    raise ConnectionError(
        f"Workers must have a trainer; none came to {trainer} within "
        f"{patience + _TO_START:.0f} seconds. See what its task says."
    )


def end_of_trainer(
    answers: Callable[[], bool],
    is_told: Callable[[], bool],
    is_dismissed: Callable[[], bool],
    patience: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Waits for the end of a trainer; returns whether there was one.

    Args:
        answers: whether the trainer can be reached.
        is_told: whether this process has been told to end.
        is_dismissed: whether the trainer has said that it ends.
        patience: seconds for which it waits for its workers.
        clock: in seconds.
        sleep: waits for so many seconds.
    """
    seen, last = False, clock()
    while not is_dismissed():
        if answers():
            seen, last = True, clock()
        told = is_told()
        longest = _TO_CLOSE if told else patience + _TO_START
        if clock() - last > longest or (told and not seen):
            return seen
        sleep(_PAUSE)
    return True


def _answers(address: str) -> bool:
    try:
        with socket.create_connection(split_address(address), 1.0):
            return True
    except OSError:
        return False
