"""The kernel's filter that has a socket get some addresses' packets. No TensorFlow."""

from __future__ import annotations

import ctypes
import ipaddress
import socket
import struct
from collections.abc import Sequence

_SO_ATTACH_FILTER = 26
# Of linux/filter.h: instructions, and where the IP header begins.
_LOAD_WORD, _LOAD_BYTE, _AND, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x30, 0x54, 0x15, 0x06
_IP_HEADER = -0x100000 & 0xFFFFFFFF
_VERSION_BITS, _VERSION_4 = 0xF0, 0x40
_DESTINATION = {4: 16, 6: 24}
_KEEP, _DROP = 0xFFFFFFFF, 0

Instruction = tuple[int, int, int, int]


def filter_program(addresses: Sequence[str]) -> list[Instruction]:
    """Instructions that keep packets for these addresses and drop all others.

    Returns:
        (operation, jump if true, jump if false, operand) of each.
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


def attach_filter(listener: socket.socket, program: Sequence[Instruction]) -> None:
    """Has a socket get only the packets that a program keeps, in place of its last one.

    Raises:
        OSError: if the system does not allow that, or has no such filters.
    """
    packed = b"".join(struct.pack("HBBI", *each) for each in program)
    buffer = ctypes.create_string_buffer(packed)
    where = struct.pack("HL", len(program), ctypes.addressof(buffer))
    listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, where)


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
