"""Addresses, interfaces and ports of this machine."""

import contextlib
import ipaddress
import random
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from lingvo_pipe.core.errors import UserConnectionError, Words
from lingvo_pipe.pipeline.devices.cluster_spec import split_address

ALL_FLAG = "--listen_on_all_addresses"
_LOOPBACK = "lo"
_SYSTEM_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST_PORT, _END_PORT = 10_000, 65_536
_MAX_TRIES = 1_000


def own_addresses(address: str, others: Sequence[str] = ()) -> list[str]:
    """Returns the IP addresses of this machine at which a task must answer.

    `address` is the task's own `host:port`. A machine may know its own name as a
    loopback address, such as 127.0.1.1. Then the result includes the addresses from
    which this machine reaches the other tasks, `others`.

    Raises:
        ConnectionError: if the host is not this machine, or others can't reach it.
    """
    host, _ = split_address(address)
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UserConnectionError(
            path=address,
            expected="a host that this machine knows",
            got=Words(error.strerror),
            hint="Give the same address to all tasks.",
        ) from error
    host_ips = list(dict.fromkeys(str(entry[4][0]) for entry in entries))
    local_ips = [ip for ip in host_ips if _is_own(ip)]
    if not local_ips:
        raise UserConnectionError(
            path=address,
            expected="an address of the task's own machine",
            got=Words(", ".join(host_ips)),
            hint=f"If there is a proxy in between, pass {ALL_FLAG}.",
        )
    if not all(map(is_loopback, local_ips)) or _means_loopback(host):
        return local_ips
    seen = [ip for ip in map(route_source, others) if ip is not None]
    outside = [ip for ip in seen if not is_loopback(ip)]
    if outside:
        return list(dict.fromkeys([*local_ips, *outside]))
    if seen and len(seen) == len(others):  # All on this machine.
        return local_ips
    raise UserConnectionError(
        path=address,
        expected="an address that other machines reach",
        got=Words(", ".join(local_ips)),
        hint="Give all tasks the address itself, such as 10.0.0.5.",
    )


def check_port(task: str, address: str) -> None:
    """Raises ConnectionError if the server of a task can't listen at its address."""
    try:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("", split_address(address)[1]))
    except OSError as error:
        raise port_error(task, address, str(error.strerror)) from error


def port_error(task: str, address: str, reason: str) -> ConnectionError:
    """Returns an error which says that a task's server can't listen at `address`."""
    return UserConnectionError(
        f"{task} cannot listen at {address}: {reason}.",
        hint="End the process that listens there, or choose another port in --cluster, "
        "for all tasks.",
    )


def answers(host: str, port: int, seconds: float) -> bool:
    """Returns True if a connection to the port succeeds within `seconds`."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), seconds):
        return True
    return False


def is_loopback(ip: str) -> bool:
    """Returns True for a loopback address."""
    return ipaddress.ip_address(ip.partition("%")[0]).is_loopback


def unused_ports(number: int) -> list[int]:
    """Returns different ports of this machine at which nothing listens.

    If possible, the ports are outside the range from which the system assigns ports.

    Raises:
        OSError: if there are too few such ports.
    """
    try:
        first_system = max(_FIRST_PORT, int(_SYSTEM_PORTS.read_text().split()[0]))
    except OSError:  # The system does not show its range.
        first_system = _FIRST_PORT
    candidates = [
        port
        for ports in (range(_FIRST_PORT, first_system), range(first_system, _END_PORT))
        for port in random.SystemRandom().sample(ports, min(_MAX_TRIES, len(ports)))
    ]
    unused: list[int] = []
    with contextlib.ExitStack() as stack:
        for port in candidates:
            listener = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                listener.bind(("", port))
                unused.append(port)
            if len(unused) == number:
                return unused
    raise OSError(
        f"This machine needs {number} free ports between {_FIRST_PORT} and "
        f"{_END_PORT}; {len(unused)} were found."
    )


def _is_own(ip: str) -> bool:
    """Returns True for an address of this machine. Only such addresses can be bound."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family) as probe:
        probe.bind((ip, 0))
        return True
    return False


def _means_loopback(host: str) -> bool:
    """Returns True if a host name or address is loopback on every machine."""
    with contextlib.suppress(ValueError):  # A name is not an address.
        return host == "localhost" or is_loopback(host)
    return False


def route_source(address: str) -> str | None:
    """Returns the IP address that this machine would send from to a task, or None."""
    with contextlib.suppress(OSError):
        entries = socket.getaddrinfo(*split_address(address), type=socket.SOCK_DGRAM)
        family, kind, protocol, _, target = entries[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    return None


class InterfaceAddress(NamedTuple):
    """An IP address, and the name of its network interface."""

    interface: str
    ip: str


def common_interface(addresses: Sequence[str]) -> str | None:
    """Returns the network interface that has all these addresses, or None."""
    # The loopback interface may have other addresses, as behind some load balancers;
    # packets of other machines for those arrive elsewhere.
    interface_of_ip = {
        ip: name for name, ip in interface_addresses() if name != _LOOPBACK
    }
    ips = [ipaddress.ip_address(address.partition("%")[0]) for address in addresses]
    names = {
        _LOOPBACK if ip.is_loopback else interface_of_ip.get(str(ip)) for ip in ips
    }
    return names.pop() if len(names) == 1 else None


def interface_addresses() -> list[InterfaceAddress]:
    """Returns all addresses of this machine's interfaces.

    Raises:
        OSError: if the system cannot list the addresses.
    """
    # For an interface's second address, a label follows the name: `eth0:1`.
    return [
        InterfaceAddress(label.partition(":")[0], entry.address.partition("%")[0])
        for label, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family in (socket.AF_INET, socket.AF_INET6)
    ]
