"""A restricted port answers at its addresses, and nowhere else."""

from __future__ import annotations

import contextlib
import ctypes
import encodings.idna  # noqa: F401  (Unreadable after privileges are dropped.)
import ipaddress
import itertools
import os
import random
import re
import socket
import struct
import threading
import time
import traceback
from collections.abc import Callable, Sequence

import pytest

from lingvo_pipe.core.errors import UserConnectionError
from lingvo_pipe.pipeline.devices import listener_restriction
from lingvo_pipe.pipeline.devices.listener_restriction import (
    Instruction,
    attach_filter,
    close_other_connections,
    filter_program,
    restrict_listeners,
    restricting_early,
)
from lingvo_pipe.pipeline.devices.own_addresses import answers, interface_addresses
from tests.support.cases import exhaustive

NOBODY = 65534
LOOPBACK = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
PATIENCE = 300.0  # Seconds, on a busy machine.


def _may_filter() -> bool:
    with socket.socket() as probe:
        try:
            attach_filter(probe, filter_program(LOOPBACK))
        except PermissionError:
            return False
    return True


MAY_FILTER = _may_filter()


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
@pytest.mark.parametrize(
    "addresses",
    [
        *map(exhaustive, [["127.0.0.2"], ["127.0.0.1", "127.0.0.3"]]),
        ["127.0.0.1", "::1"],
    ],
)
def test_sockets_answer_where_they_may(
    family: socket.AddressFamily, addresses: list[str]
) -> None:
    """Sockets of either family, and several at one port."""
    is_6 = family == socket.AF_INET6
    with socket.socket(family) as first, socket.socket(family) as second:
        for each in (first, second):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            each.bind(("", first.getsockname()[1]))
            each.listen()
        port = first.getsockname()[1]
        restrict_listeners(port, addresses)
        for ip in [*LOOPBACK, *(["::1"] if is_6 else [])]:
            for _ in range(2):
                # Without the capability, all of an interface answers.
                is_let_in = ip in addresses or not MAY_FILTER
                assert answers(ip, port, 0.2) == is_let_in


def test_data_for_a_restricted_socket_arrives() -> None:
    with socket.create_server(("", 0)) as listener:
        port = listener.getsockname()[1]
        restrict_listeners(port, ["127.0.0.2"])
        with socket.create_connection(("127.0.0.2", port)) as there:
            here, _ = listener.accept()
            with here:
                there.sendall(b"x" * 10_000)
                assert here.recv(10_000, socket.MSG_WAITALL) == b"x" * 10_000
                here.sendall(b"y" * 10_000)
                assert there.recv(10_000, socket.MSG_WAITALL) == b"y" * 10_000


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_earlier_connections_at_other_addresses_are_closed(
    family: socket.AddressFamily,
) -> None:
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(family))
        listener.bind(("", 0))
        listener.listen()
        port = listener.getsockname()[1]
        pairs = []
        for host in ("127.0.0.1", "127.0.0.2"):
            there = stack.enter_context(socket.create_connection((host, port), 5.0))
            pairs.append((there, stack.enter_context(listener.accept()[0])))
        restrict_listeners(port, ["127.0.0.2"])
        close_other_connections(port, ["127.0.0.2"])
        (closed, _), (open_one, here) = pairs
        assert closed.recv(1) == b""
        here.sendall(b"x")
        assert open_one.recv(1) == b"x"


def test_a_restriction_without_effect_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket() as listener:
        listener.bind(("", 0))
        port = listener.getsockname()[1]
        named = rf"\b{port}\b.*\b127\.0\.0\.2\b.*{{}}.*--listen_on_all_addresses"
        with pytest.raises(UserConnectionError, match=named.format(r"\bsocket\b")):
            restrict_listeners(port, ["127.0.0.2"])
        listener.listen()
        # As if the system accepted the option and did nothing.
        monkeypatch.setattr(listener_restriction, "attach_filter", lambda *unused: None)
        still = named.format(r"\b127\.0\.0\.1\b")
        with pytest.raises(UserConnectionError, match=still):
            restrict_listeners(port, ["127.0.0.2"])
        monkeypatch.setattr(listener_restriction, "attach_filter", _refuse)
        bound = []
        monkeypatch.setattr(
            listener_restriction, "_bind_to", lambda *x: bound.append(x[1])
        )
        if outside := _outside():
            still = named.format(f"({'|'.join(map(re.escape, outside))})")
            with pytest.raises(UserConnectionError, match=still):
                restrict_listeners(port, ["127.0.0.2"])
            assert bound == ["lo"]
        unpermitted = named.format(r"\b192\.0\.2\.77\b.*\bCAP_NET_ADMIN\b")
        with pytest.raises(UserConnectionError, match=unpermitted):
            restrict_listeners(port, ["127.0.0.2", "192.0.2.77"])


def _outside() -> list[str]:
    """Returns this machine's addresses of version 4 that are not loopback."""
    ips = [x.ip for x in interface_addresses() if x.interface != "lo"]
    return [ip for ip in ips if ":" not in ip]


def _refuse(*unused: object) -> None:
    raise PermissionError(1, "Operation not permitted")


def _become_nobody() -> None:
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        # Otherwise its own /proc/self is root's.
        ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)


def _unprivileged(check: Callable[[], None]) -> str:
    """Runs a check in a process of an ordinary user; returns the traceback or ""."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            # Some sandboxes have no other user.
            with contextlib.suppress(OSError):
                _become_nobody()
            check()
        except BaseException:
            os.write(writing, traceback.format_exc().encode()[-4000:])
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return text


def test_an_ordinary_users_port_answers_only_by_its_interface() -> None:
    """Or only at its address, if the kernel lets everybody filter."""
    known = interface_addresses()
    outside = [each for each in known if each.interface != "lo" and "%" not in each.ip]
    outside = [each for each in outside if not each.ip.startswith("fe80")]

    def check() -> None:
        for own, interface in [
            ("127.0.0.1", "lo"),
            *((each.ip, each.interface) for each in outside),
        ]:
            with socket.create_server(
                ("", 0), family=socket.AF_INET6, dualstack_ipv6=True
            ) as listener:
                port = listener.getsockname()[1]
                for _ in range(2):  # A second restriction does no harm.
                    restrict_listeners(port, [own])
                assert answers(own, port, 0.2)
                for other in known:
                    if other.interface != interface and not other.ip.startswith("fe80"):
                        assert not answers(other.ip, port, 0.2), (own, other)

    assert _unprivileged(check) == ""


def test_an_ordinary_user_reads_the_missing_capability(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener_restriction, "attach_filter", _refuse)

    def check() -> None:
        with socket.create_server(("", 0)) as listener:
            restrict_listeners(listener.getsockname()[1], ["127.0.1.1", "192.0.2.77"])

    text = _unprivileged(check)
    assert "ConnectionError" in text
    assert "CAP_NET_ADMIN" in text
    assert "--listen_on_all_addresses" in text


def test_a_port_is_restricted_while_its_server_still_starts() -> None:
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("", 0))
        port = listener.getsockname()[1]
        before: list[bool] = []
        with restricting_early(port, ["127.0.0.2"]):
            time.sleep(0.1)
            listener.listen(2000)  # A full queue of connections would look the same.
            deadline = time.monotonic() + PATIENCE
            while _is_open(port) and time.monotonic() < deadline:
                time.sleep(0.01)
            before.append(_is_open(port))
        assert before == [False]
        assert not [
            x for x in threading.enumerate() if x.name == "listener restriction"
        ]


def _is_open(port: int) -> bool:
    """Returns True if a port answers where one restricted to 127.0.0.2 does not."""
    probes = ["127.0.0.1"] if MAY_FILTER else _outside()
    return any(answers(ip, port, 0.2) for ip in probes)


def test_errors_of_the_block_are_raised_and_its_search_ends() -> None:
    with pytest.raises(KeyError), restricting_early(1, ["127.0.0.2"]):
        raise KeyError
    assert not [x for x in threading.enumerate() if x.name == "listener restriction"]


def test_no_copies_of_sockets_stay_open(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("", 0)) as listener:
        port = listener.getsockname()[1]
        before = os.listdir("/proc/self/fd")
        restrict_listeners(port, ["127.0.0.1"])
        unfound = rf"\b{port}\b.*\b127\.0\.0\.1\b.*\bsocket\b"
        monkeypatch.setattr(listener_restriction, "attach_filter", _refuse)
        with pytest.raises(UserConnectionError):
            restrict_listeners(port, ["192.0.2.77"])

        def fail(*unused: object, **more: object) -> socket.socket:
            raise OSError(24, "Too many open files")

        with monkeypatch.context() as patch:
            patch.setattr(listener_restriction.socket, "socket", fail)
            with pytest.raises(UserConnectionError, match=unfound):
                restrict_listeners(port, ["127.0.0.1"])
        with monkeypatch.context() as patch:
            patch.setattr(listener_restriction, "_is_tcp_at", fail)
            with pytest.raises(UserConnectionError, match=unfound):
                restrict_listeners(port, ["127.0.0.1"])
        assert os.listdir("/proc/self/fd") == before


IP_HEADER = 0xFFF00000


def _run(program: Sequence[Instruction], packet: bytes) -> int:
    """Runs a program as the kernel does; returns the number of bytes that it keeps."""
    held, position = 0, 0
    while True:
        operation, if_true, if_false, operand = program[position]
        position += 1
        offset = operand - IP_HEADER
        if operation == 0x20:
            (held,) = struct.unpack_from("!I", packet, offset)
        elif operation == 0x30:
            held = packet[offset]
        elif operation == 0x54:
            held &= operand
        elif operation == 0x05:
            position += operand
        elif operation == 0x15:
            position += if_true if held == operand else if_false
        else:
            assert operation == 0x06
            return operand


def _packet(source: str, destination: str) -> bytes:
    ip = ipaddress.ip_address(source)
    before = 12 if ip.version == 4 else 8
    header = bytes([ip.version << 4]) + bytes(before - 1)
    return header + ip.packed + ipaddress.ip_address(destination).packed + bytes(20)


def _ips(draw: random.Random, number: int) -> list[str]:
    """Returns addresses, many of which differ only in one word or byte."""
    found = []
    for _ in range(number):
        length = draw.choice([4, 16])
        found.append(str(ipaddress.ip_address(bytes(draw.choices([1, 2], k=length)))))
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("seed", range(100))
def test_packets_are_kept_if_and_only_if_their_addresses_are_among_those_given(
    seed: int,
) -> None:
    draw = random.Random(seed)
    known = _ips(draw, 8)
    addresses = draw.sample(known, draw.randint(0, 5))
    sources = draw.sample(known, draw.randint(0, 5))
    program = filter_program(addresses, sources)
    for source, destination in itertools.product(known, repeat=2):
        if (":" in source) == (":" in destination):
            is_kept = bool(_run(program, _packet(source, destination)))
            is_answered = not sources or source in sources
            assert is_kept == (destination in addresses and is_answered)


def test_the_kernel_takes_a_filter_of_a_large_cluster() -> None:
    """Four hundred tasks, half of them with addresses of version 6 too."""
    if not MAY_FILTER:
        pytest.skip("no capability CAP_NET_ADMIN")
    sources = [f"10.0.{i // 250}.{i % 250}" for i in range(400)]
    sources += [f"fd00::{i:x}" for i in range(200)]
    with socket.create_server(("", 0)) as listener:
        port = listener.getsockname()[1]
        assert restrict_listeners(port, ["127.0.0.1"], [*sources, "127.0.0.1"])
        assert answers("127.0.0.1", port, 0.2)
