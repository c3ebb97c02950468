"""Keeps a port of this process from answering at all addresses. No TensorFlow.

TensorFlow's server listens at every address of its machine, whatever it is told, and
does what whoever reaches it asks. So a filter of the kernel (classic BPF, which needs
no privilege) is put on its sockets: a packet that is for another address is dropped,
and whoever sends it gets no answer.
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from lingvo_pipe.pipeline.devices.own_addresses import ALL_FLAG

_SO_ATTACH_FILTER = 26
_FDS = Path("/proc/self/fd")
# Of linux/filter.h: instructions, and where the IP header begins.
_LOAD_WORD, _LOAD_BYTE, _AND, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x30, 0x54, 0x15, 0x06
_IP_HEADER = -0x100000 & 0xFFFFFFFF
_VERSION_BITS, _VERSION_4 = 0xF0, 0x40
_DESTINATION = {4: 16, 6: 24}
_KEEP, _DROP = 0xFFFFFFFF, 0

_TO_PROBE = 0.3  # Seconds.
_PROBES = ("127.0.0.1", "127.0.0.2", "::1")

Instruction = tuple[int, int, int, int]


def fence(port: int, addresses: Sequence[str]) -> None:
    """Has all sockets of this process that listen at a port answer at these addresses.

    Args:
        port: where it listens.
        addresses: IP addresses of this machine.

    Raises:
        ConnectionError: if the system doesn't allow that, or does not do it.
    """
    try:
        num_fenced = 0
        for each in _sockets(port):
            with each:
                if _listens(each):
                    _attach(each, filter_program(addresses))
                    num_fenced += 1
    except OSError as error:
        raise _unfenced(port, addresses, str(error.strerror)) from error
    if not num_fenced:
        raise _unfenced(port, addresses, "its socket is not found")
    answering = [ip for ip in _PROBES if ip not in addresses and _answers(ip, port)]
    if answering:
        reason = f"it still answers at {', '.join(answering)}"
        raise _unfenced(port, addresses, reason)


def cut_off(port: int, addresses: Sequence[str]) -> None:
    """Ends connections to a port of this process at other addresses than these.

    They were made in the moment before the fence.
    """
    for each in _sockets(port):
        with each:
            its_own = each.getsockname()[0].removeprefix("::ffff:")
            if not _listens(each) and its_own not in addresses:
                with contextlib.suppress(OSError):  # It was closed meanwhile.
                    each.shutdown(socket.SHUT_RDWR)


def filter_program(addresses: Sequence[str]) -> list[Instruction]:
    """Instructions that keep packets for these addresses and drop all others.

    Returns:
        (operation, jump if true, jump if false, operand) of each; see `packed`.
    """
    ips = [ipaddress.ip_address(each.partition("%")[0]) for each in addresses]
    version_4 = _for_version(4, [ip.packed for ip in ips if ip.version == 4])
    version_6 = _for_version(6, [ip.packed for ip in ips if ip.version == 6])
    return [
        (_LOAD_BYTE, 0, 0, _IP_HEADER),
        (_AND, 0, 0, _VERSION_BITS),
        (_JUMP_IF_EQUAL, 0, len(version_4), _VERSION_4),
        *version_4,
        *version_6,
    ]


def _for_version(version: int, addresses: Sequence[bytes]) -> list[Instruction]:
    """Keeps packets whose destination is one of these addresses."""
    program: list[Instruction] = []
    for address in addresses:
        words = struct.unpack(f"!{len(address) // 4}I", address)
        for i, word in enumerate(words):
            where = (_IP_HEADER + _DESTINATION[version] + 4 * i) & 0xFFFFFFFF
            # Past what is left of this address, and its end.
            past = 2 * (len(words) - i - 1) + 1
            program += [(_LOAD_WORD, 0, 0, where), (_JUMP_IF_EQUAL, 0, past, word)]
        program.append((_RETURN, 0, 0, _KEEP))
    return [*program, (_RETURN, 0, 0, _DROP)]


def _attach(listener: socket.socket, program: Sequence[Instruction]) -> None:
    packed = b"".join(struct.pack("HBBI", *each) for each in program)
    buffer = ctypes.create_string_buffer(packed)
    where = struct.pack("HL", len(program), ctypes.addressof(buffer))
    listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, where)


def _sockets(port: int) -> Iterator[socket.socket]:
    """Copies of this process's sockets that have a port: listeners, connections."""
    for entry in os.listdir(_FDS):
        try:
            if not os.readlink(_FDS / entry).startswith("socket:"):
                continue
            copy = socket.socket(fileno=os.dup(int(entry)))
        except OSError:  # Closed meanwhile.
            continue
        is_ip = copy.family in (socket.AF_INET, socket.AF_INET6)
        is_tcp = is_ip and copy.type == socket.SOCK_STREAM
        if is_tcp and copy.getsockname()[1] == port:
            yield copy
        else:
            copy.close()


def _listens(each: socket.socket) -> bool:
    return bool(each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _answers(ip: str, port: int) -> bool:
    try:
        with socket.create_connection((ip, port), _TO_PROBE):
            return True
    except OSError:
        return False


def _unfenced(port: int, addresses: Sequence[str], reason: str) -> ConnectionError:
    return ConnectionError(
        f"Port {port} must answer at {', '.join(addresses)} and nowhere else; the "
        f"system does not see to that: {reason}. Whoever reaches the port may run "
        f"anything here: {ALL_FLAG} accepts that, within a network that you trust."
    )
