"""Where the workers of a test may listen."""

from __future__ import annotations

import socket


def free_ports(number: int) -> list[int]:
    """Ports of this machine that nothing listens on."""
    sockets = [socket.socket() for _ in range(number)]
    for each in sockets:
        each.bind(("localhost", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
