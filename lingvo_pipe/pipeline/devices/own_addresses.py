"""At which addresses of this machine a task is to answer. No TensorFlow."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

from lingvo_pipe.pipeline.devices.cluster_spec import split_address

ALL_FLAG = "--listen_on_all_addresses"


def own_addresses(address: str, others: Sequence[str] = ()) -> list[str]:
    """The addresses of this machine that a task's address stands for.

    A machine may know its own name as a loopback address, such as Debian's 127.0.1.1,
    while other machines don't. Then the address is taken with which this machine goes
    to the other tasks.

    Args:
        address: `host:port` of the task.
        others: addresses of the other tasks.

    Returns:
        IP addresses.

    Raises:
        ConnectionError: if the host is no address of this machine, or one that others
            can't reach.
    """
    host, _ = split_address(address)
    try:
        found = _resolve(host)
    except OSError as error:
        raise ConnectionError(
            f"A task must be given an address of its own machine; {host} of {address} "
            f"is not known here ({error.strerror}). Give the same address to all tasks."
        ) from error
    own = [ip for ip in found if _is_own(ip)]
    if not own:
        raise ConnectionError(
            f"A task must be given an address of its own machine; {host} of {address} "
            f"means {', '.join(found)}, and this machine has no such address. Give it "
            f"the machine's own, or {ALL_FLAG} if a proxy stands between."
        )
    if not all(map(_is_loopback, own)) or _means_loopback(host):
        return own
    seen = [ip for ip in map(_way_to, others) if ip is not None]
    outside = [ip for ip in seen if not _is_loopback(ip)]
    if outside:
        return list(dict.fromkeys([*own, *outside]))
    if seen and len(seen) == len(others):  # All on this machine.
        return own
    raise ConnectionError(
        f"A task must be given an address that other machines reach; {host} of "
        f"{address} is {', '.join(own)} here. Write the address itself, such as "
        "10.0.0.5, for all tasks."
    )


def _resolve(host: str) -> list[str]:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def _is_own(ip: str) -> bool:
    """Whether an address is one of this machine's: only then it can be bound."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.bind((ip, 0))
    except OSError:
        return False
    return True


def _is_loopback(ip: str) -> bool:
    return ipaddress.ip_address(ip.partition("%")[0]).is_loopback


def _means_loopback(host: str) -> bool:
    """Whether a host is a loopback address to whoever reads it."""
    if host == "localhost":
        return True
    try:
        return _is_loopback(host)
    except ValueError:
        return False


def _way_to(address: str) -> str | None:
    """This machine's address on the way to another task; nothing is sent."""
    try:
        found = socket.getaddrinfo(*split_address(address), type=socket.SOCK_DGRAM)
        family, kind, protocol, _, where = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(where)
            return str(probe.getsockname()[0])
    except OSError:
        return None
