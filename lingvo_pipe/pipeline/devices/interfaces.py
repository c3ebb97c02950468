"""Which of this machine's network interfaces have which addresses. No TensorFlow."""

from __future__ import annotations

import ctypes
import ipaddress
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_LOOPBACK = "lo"
# Where a socket's address holds an IP address, and of how many bytes.
_IP_AT = {socket.AF_INET: (4, 4), socket.AF_INET6: (8, 16)}


class _Entry(ctypes.Structure):
    """What all systems' `struct ifaddrs` begins with."""

    _fields_ = (
        ("following", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("flags", ctypes.c_uint),
        ("address", ctypes.c_void_p),
    )


@dataclass(frozen=True)
class InterfaceAddress:
    """An IP address, and the name of the interface that has it."""

    interface: str
    ip: str


def interface_addresses() -> list[InterfaceAddress]:
    """All addresses of this machine's interfaces.

    Raises:
        OSError: if the system does not say.
    """
    library = ctypes.CDLL(None, use_errno=True)
    first = ctypes.c_void_p()
    if library.getifaddrs(ctypes.byref(first)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    try:
        return list(_addresses(first.value))
    finally:
        library.freeifaddrs(first)


def common_interface(addresses: Sequence[str]) -> str | None:
    """The interface that packets for all these addresses come in by.

    Args:
        addresses: IP addresses of this machine.

    Returns:
        Its name; None if there is none, or more than one.

    Raises:
        OSError: as `interface_addresses`.
    """
    # Other machines' packets for an address that the loopback interface was given, as
    # behind some load balancers, come in elsewhere.
    known = {
        each.ip: each.interface
        for each in interface_addresses()
        if each.interface != _LOOPBACK
    }
    ips = [ipaddress.ip_address(each.partition("%")[0]) for each in addresses]
    names = {_LOOPBACK if ip.is_loopback else known.get(str(ip)) for ip in ips}
    return names.pop() if len(names) == 1 else None


def _addresses(at: int | None) -> Iterator[InterfaceAddress]:
    while at:
        entry = _Entry.from_address(at)
        at = entry.following
        if not entry.address:
            continue
        family = ctypes.c_ushort.from_address(entry.address).value
        if family in _IP_AT:
            where, length = _IP_AT[socket.AddressFamily(family)]
            packed = ctypes.string_at(entry.address + where, length)
            # A label follows the name of an interface's second address: `eth0:1`.
            name = entry.name.decode().partition(":")[0]
            yield InterfaceAddress(name, str(ipaddress.ip_address(packed)))
