"""A fenced port answers at its addresses, and nowhere else."""

from __future__ import annotations

import contextlib
import ipaddress
import random
import socket
import struct
from collections.abc import Sequence

import pytest

from lingvo_pipe.pipeline.devices import socket_fence
from lingvo_pipe.pipeline.devices.socket_fence import (
    Instruction,
    cut_off,
    fence,
    filter_program,
)

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


def _reaches(ip: str, port: int) -> bool:
    try:
        with socket.create_connection((ip, port), 0.2):
            return True
    except OSError:
        return False


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
@pytest.mark.parametrize(
    "addresses",
    [["127.0.0.2"], ["127.0.0.1", "127.0.0.3"], ["127.0.0.1", "::1"]],
)
def test_sockets_answer_where_they_may(
    family: socket.AddressFamily, addresses: list[str]
) -> None:
    """Those of either family, and those that share a port."""
    is_6 = family == socket.AF_INET6
    with socket.socket(family) as first, socket.socket(family) as second:
        for each in (first, second):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            each.bind(("", first.getsockname()[1]))
            each.listen()
        port = first.getsockname()[1]
        fence(port, addresses)
        for ip in ["127.0.0.1", "127.0.0.2", "127.0.0.3", *(["::1"] if is_6 else [])]:
            for _ in range(2):
                assert _reaches(ip, port) == (ip in addresses)


def test_what_is_said_to_a_fenced_socket_arrives() -> None:
    with socket.socket() as listener:
        listener.bind(("", 0))
        listener.listen()
        port = listener.getsockname()[1]
        fence(port, ["127.0.0.2"])
        with socket.create_connection(("127.0.0.2", port)) as there:
            here, _ = listener.accept()
            with here:
                there.sendall(b"x" * 10_000)
                assert here.recv(10_000, socket.MSG_WAITALL) == b"x" * 10_000
                here.sendall(b"y" * 10_000)
                assert there.recv(10_000, socket.MSG_WAITALL) == b"y" * 10_000


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_who_came_before_the_fence_is_cut_off(family: socket.AddressFamily) -> None:
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(family))
        listener.bind(("", 0))
        listener.listen()
        port = listener.getsockname()[1]
        pairs = []
        for host in ("127.0.0.1", "127.0.0.2"):
            there = stack.enter_context(socket.create_connection((host, port), 5.0))
            pairs.append((there, stack.enter_context(listener.accept()[0])))
        fence(port, ["127.0.0.2"])
        cut_off(port, ["127.0.0.2"])
        (cut, _), (kept, here) = pairs
        assert cut.recv(1) == b""
        here.sendall(b"x")
        assert kept.recv(1) == b"x"


def test_a_fence_that_does_not_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "nowhere else; the system does not see to that: {}.*--listen_on_all_addr"
    with socket.socket() as listener:
        listener.bind(("", 0))
        port = listener.getsockname()[1]
        with pytest.raises(
            ConnectionError, match=words.format("its socket is not fou")
        ):
            fence(port, ["127.0.0.2"])
        listener.listen()
        # As where the option is accepted, and does nothing.
        monkeypatch.setattr(socket_fence, "_attach", lambda *unused: None)
        with pytest.raises(
            ConnectionError, match=words.format("it still answers at 127")
        ):
            fence(port, ["127.0.0.2"])

        def refuse(*unused: object) -> None:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(socket_fence, "_attach", refuse)
        with pytest.raises(ConnectionError, match=words.format("Operation not perm")):
            fence(port, ["127.0.0.2"])
