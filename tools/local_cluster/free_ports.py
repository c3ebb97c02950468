"""Ports of this machine for workers, which must still be free when one restarts."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST, _HIGHEST = 10_000, 65_536
_MOST_TRIES = 1_000


def free_ports(number: int) -> list[int]:
    """Ports that nothing listens on, and that no connection is given by the system.

    The system takes ports of a range of its own for whoever connects to somewhere. A
    port of those might be in use when a worker that has died comes back. So they are
    taken last.

    Raises:
        OSError: if there are none.
    """
    systems = max(_LOWEST, int(_RANGE.read_text().split()[0]))
    candidates = [*_some(range(_LOWEST, systems)), *_some(range(systems, _HIGHEST))]
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        for port in candidates:
            listener = socket.socket()
            try:
                listener.bind(("", port))
            except OSError:
                listener.close()
                continue
            stack.enter_context(listener)
            found.append(port)
            if len(found) == number:
                return found
    raise OSError(
        f"This machine must have {number} free ports between {_LOWEST} and "
        f"{_HIGHEST}; {len(found)} were found."
    )


def _some(ports: range) -> list[int]:
    return random.sample(ports, min(_MOST_TRIES, len(ports)))
