"""A program for the kernel keeps what is for some addresses."""

from __future__ import annotations

import ipaddress
import random
import struct
from collections.abc import Sequence

import pytest

from lingvo_pipe.pipeline.devices.packet_filter import Instruction, filter_program

IP_HEADER = 0xFFF00000


def _run(program: Sequence[Instruction], packet: bytes) -> int:
    """Does what the kernel does with a packet; returns how many bytes it keeps."""
    held, at = 0, 0
    while True:
        operation, if_true, if_false, operand = program[at]
        at += 1
        where = operand - IP_HEADER
        if operation == 0x20:
            (held,) = struct.unpack_from("!I", packet, where)
        elif operation == 0x30:
            held = packet[where]
        elif operation == 0x54:
            held &= operand
        elif operation == 0x15:
            at += if_true if held == operand else if_false
        else:
            assert operation == 0x06
            return operand


def _packet(destination: str) -> bytes:
    ip = ipaddress.ip_address(destination)
    before = 16 if ip.version == 4 else 24
    header = bytes([ip.version << 4]) + bytes(before - 1)
    return header + ip.packed + bytes(20)


def _ips(draw: random.Random, number: int) -> list[str]:
    """Addresses, many of which differ in one word or one byte only."""
    bytes_of = [1, 2]
    found = []
    for _ in range(number):
        length = draw.choice([4, 16])
        found.append(str(ipaddress.ip_address(bytes(draw.choices(bytes_of, k=length)))))
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("seed", range(100))
def test_packets_are_kept_if_they_are_for_one_of_the_addresses(seed: int) -> None:
    draw = random.Random(seed)
    known = _ips(draw, 8)
    addresses = draw.sample(known, draw.randint(0, 5))
    program = filter_program(addresses)
    for ip in known:
        assert bool(_run(program, _packet(ip))) == (ip in addresses)
