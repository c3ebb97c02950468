"""Whether a server of this process can have its port. No TensorFlow."""

from __future__ import annotations

import contextlib
import socket

from lingvo_pipe.pipeline.devices.cluster_spec import split_address


def check_port(who: str, address: str) -> None:
    """Raises ConnectionError if a server could not listen at a port.

    Args:
        who: whose server it is, as in `worker:0`.
        address: `host:port`.
    """
    try:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("", split_address(address)[1]))
    except OSError as error:
        raise no_port(who, address, str(error.strerror)) from error


def no_port(who: str, address: str, reason: str) -> ConnectionError:
    """The error of a server that can't listen; see `check_port`."""
    return ConnectionError(
        f"{who} must be able to listen at {address}; it can't: {reason}. End what else "
        "does, or choose another port in --cluster, for all tasks."
    )


def unused_ports(number: int) -> list[int]:
    """Different ports of this machine that nothing listens on."""
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.socket()) for _ in range(number)]
        for listener in listeners:
            listener.bind(("", 0))
        return [int(listener.getsockname()[1]) for listener in listeners]
