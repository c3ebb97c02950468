"""Ports of this machine for workers, which must still be free when one restarts."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10_000
_MOST_TRIES = 1_000


def free_ports(number: int) -> list[int]:
    """Ports that nothing listens on, and that no connection is given by the system.

    The system takes ports of a range of its own for whoever connects to somewhere. A
    port of those might be in use when a worker that has died comes back.

    Raises:
        OSError: if there are none.
    """
    candidates = range(_LOWEST, int(_RANGE.read_text().split()[0]))
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        for port in random.sample(candidates, min(_MOST_TRIES, len(candidates))):
            listener = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                listener.bind(("", port))
                found.append(port)
            if len(found) == number:
                return found
    raise OSError(
        f"This machine must have {number} free ports between {candidates.start} and "
        f"{candidates.stop}; {len(found)} were found."
    )
