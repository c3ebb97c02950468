"""Lets a scheduler's worker notice that its trainer has ended or was killed."""

import signal
import socket
import threading
import time
from collections.abc import Callable

from lingvo_pipe.core.errors import UserClusterError
from lingvo_pipe.core.signals import TerminationSignals
from lingvo_pipe.pipeline.devices.cluster_spec import Cluster, split_address
from lingvo_pipe.pipeline.devices.own_addresses import (
    answers,
    own_addresses,
    port_error,
)

# Seconds in which a trainer starts or restarts, besides its wait for workers.
_START_SECONDS = 300.0
# Seconds without an answer after which a trainer has ended, once a signal has come.
_CLOSE_SECONDS = 2.0
_POLL_SECONDS = 1.0


def wait_for_trainers_end(
    trainer: str,
    has_notice: Callable[[], bool],
    is_released: Callable[[], bool],
    patience: float,
) -> str:
    """Waits until a trainer has started and ended. Returns a message about its end.

    If a scheduler signals all tasks at once, the worker waits on until the trainer has
    saved its state and ended. See `poll_trainer`.

    Raises:
        ConnectionError: if no trainer starts.
    """
    with TerminationSignals([signal.SIGTERM]) as signals:
        seen = poll_trainer(
            lambda: answers(*split_address(trainer), 1.0),
            lambda: signals.last_signal_name is not None,
            has_notice,
            is_released,
            patience,
        )
    if seen:
        return f"The trainer at {trainer} has ended."
    if signals.last_signal_name is not None:
        return f"Stopped by {signals.last_signal_name}."
    raise UserClusterError(
        f"No trainer started at {trainer} within {patience + _START_SECONDS:.0f} s.",
        hint="Workers need one: see the output of its task.",
    )


def poll_trainer(
    answers: Callable[[], bool],
    is_signalled: Callable[[], bool],
    has_notice: Callable[[], bool],
    is_released: Callable[[], bool],
    patience: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Waits for the end of a trainer. Returns True if it has ended.

    `answers` returns True if the trainer can be reached. `is_signalled` returns True
    after a termination signal to this process, and `has_notice` after a shutdown
    notice. `is_released` is called after a signal, and returns True if the trainer no
    longer uses this worker. `patience` is the number of seconds that the trainer waits
    for workers.
    """
    seen, last = False, clock()
    while not has_notice():
        if answers():
            seen, last = True, clock()
        now, signalled = clock(), is_signalled()
        if signalled and is_released():
            return False
        limit = _CLOSE_SECONDS if signalled else patience + _START_SECONDS
        if now - last > limit or (signalled and not seen):
            return seen
        sleep(_POLL_SECONDS)
    return True


def answer_workers(cluster: Cluster) -> None:
    """Starts threads that answer workers' questions whether the trainer runs.

    A trainer that uses no worker has no server for that. The threads accept connections
    at the trainer's address, and read nothing. Without an address there are none.

    Raises:
        ConnectionError: if the port is in use, or the address is of another machine.
    """
    trainer = cluster.trainer
    if trainer is None:
        return
    port, ips = split_address(trainer)[1], [""]
    if not cluster.listens_on_all:
        ips = own_addresses(trainer, cluster.workers)
    for ip in ips:
        try:
            listener = _listen(ip, port)
        except OSError as error:
            raise port_error("The trainer", trainer, str(error.strerror)) from error
        threading.Thread(target=_answer, args=(listener,), daemon=True).start()


def _listen(ip: str, port: int) -> socket.socket:
    """Returns a listener at an IP address, or at all addresses if `ip` is empty."""
    is_dual = not ip and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if is_dual or ":" in ip else socket.AF_INET
    return socket.create_server((ip, port), family=family, dualstack_ipv6=is_dual)


def _answer(listener: socket.socket) -> None:
    while True:
        listener.accept()[0].close()
