"""A fenced port answers at its addresses, and nowhere else."""

from __future__ import annotations

import contextlib
import ctypes
import encodings.idna  # noqa: F401  (Who drops privileges may not read it.)
import os
import re
import socket
import threading
import time
import traceback
from collections.abc import Callable

import pytest

from lingvo_pipe.pipeline.devices import socket_fence
from lingvo_pipe.pipeline.devices.interfaces import interface_addresses
from lingvo_pipe.pipeline.devices.packet_filter import attach_filter, filter_program
from lingvo_pipe.pipeline.devices.socket_fence import (
    cut_off,
    fence,
    fenced_meanwhile,
)

NOBODY = 65534
LOOPBACK = ("127.0.0.1", "127.0.0.2", "127.0.0.3")


def _may_filter() -> bool:
    with socket.socket() as probe:
        try:
            attach_filter(probe, filter_program(LOOPBACK))
        except PermissionError:
            return False
    return True


MAY_FILTER = _may_filter()


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
        for ip in [*LOOPBACK, *(["::1"] if is_6 else [])]:
            for _ in range(2):
                # Without the capability, all of an interface answers.
                is_let_in = ip in addresses or not MAY_FILTER
                assert _reaches(ip, port) == is_let_in


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
    with socket.socket() as listener:
        listener.bind(("", 0))
        port = listener.getsockname()[1]
        named = rf"\b{port}\b.*\b127\.0\.0\.2\b.*{{}}.*--listen_on_all_addresses"
        with pytest.raises(ConnectionError, match=named.format(r"\bsocket\b")):
            fence(port, ["127.0.0.2"])
        listener.listen()
        # As where the option is accepted, and does nothing.
        monkeypatch.setattr(socket_fence, "attach_filter", lambda *unused: None)
        still = named.format(r"\b127\.0\.0\.1\b")
        with pytest.raises(ConnectionError, match=still):
            fence(port, ["127.0.0.2"])
        monkeypatch.setattr(socket_fence, "attach_filter", _refuse)
        bound = []
        monkeypatch.setattr(socket_fence, "_bind_to", lambda *x: bound.append(x[1]))
        outside = [x.ip for x in interface_addresses() if x.interface != "lo"]
        outside = [ip for ip in outside if ":" not in ip]
        if outside:
            still = named.format(f"({'|'.join(map(re.escape, outside))})")
            with pytest.raises(ConnectionError, match=still):
                fence(port, ["127.0.0.2"])
            assert bound == ["lo"]
        unpermitted = named.format(r"\b192\.0\.2\.77\b.*\bCAP_NET_ADMIN\b")
        with pytest.raises(ConnectionError, match=unpermitted):
            fence(port, ["127.0.0.2", "192.0.2.77"])


def _refuse(*unused: object) -> None:
    raise PermissionError(1, "Operation not permitted")


def _become_nobody() -> None:
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        # Else its own /proc/self is root's.
        ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)


def _unprivileged(check: Callable[[], None]) -> str:
    """Runs a check in a process of an ordinary user; returns what it raised."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            # Not where there is no other user, as in some sandboxes.
            with contextlib.suppress(OSError):
                _become_nobody()
            check()
        except BaseException:
            os.write(writing, traceback.format_exc().encode()[-4000:])
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        said = told.read()
    os.waitpid(child, 0)
    return said


def test_an_ordinary_user_s_port_answers_by_its_interface_alone() -> None:
    """Or at its address alone, where the kernel lets everybody filter."""
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
                for _ in range(2):  # A second one does no harm.
                    fence(port, [own])
                assert _reaches(own, port)
                for other in known:
                    if other.interface != interface and not other.ip.startswith("fe80"):
                        assert not _reaches(other.ip, port), (own, other)

    assert _unprivileged(check) == ""


def test_an_ordinary_user_is_told_what_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket_fence, "attach_filter", _refuse)

    def check() -> None:
        with socket.create_server(("", 0)) as listener:
            fence(listener.getsockname()[1], ["127.0.1.1", "192.0.2.77"])

    said = _unprivileged(check)
    assert "ConnectionError" in said
    assert "CAP_NET_ADMIN" in said
    assert "--listen_on_all_addresses" in said


def test_a_port_is_fenced_while_its_server_still_starts() -> None:
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("", 0))
        port = listener.getsockname()[1]
        before: list[bool] = []
        with fenced_meanwhile(port, ["127.0.0.2"]):
            time.sleep(0.1)
            listener.listen()
            deadline = time.monotonic() + 10.0
            while _is_open(port) and time.monotonic() < deadline:
                time.sleep(0.01)
            before.append(_is_open(port))
        assert before == [False]
        assert not [x for x in threading.enumerate() if x.name == "fence"]


def _is_open(port: int) -> bool:
    """Whether a port answers where one that is fenced for 127.0.0.2 does not."""
    outside = [x.ip for x in interface_addresses() if x.interface != "lo"]
    outside = [ip for ip in outside if ":" not in ip]
    probes = ["127.0.0.1"] if MAY_FILTER else outside
    return any(_reaches(ip, port) for ip in probes)


def test_what_fails_in_the_block_or_the_fence_is_raised() -> None:
    with pytest.raises(KeyError), fenced_meanwhile(1, ["127.0.0.2"]):
        raise KeyError
    with (
        pytest.raises(ConnectionError, match=r"\b1\b.*\b127\.0\.0\.2\b.*\bsocket\b"),
        fenced_meanwhile(1, ["127.0.0.2"]),
    ):
        pass


def test_no_copies_of_sockets_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("", 0)) as listener:
        port = listener.getsockname()[1]
        before = os.listdir("/proc/self/fd")
        fence(port, ["127.0.0.1"])
        unfound = rf"\b{port}\b.*\b127\.0\.0\.1\b.*\bsocket\b"
        monkeypatch.setattr(socket_fence, "attach_filter", _refuse)
        with pytest.raises(ConnectionError):
            fence(port, ["192.0.2.77"])

        def fail(*unused: object, **more: object) -> socket.socket:
            raise OSError(24, "Too many open files")

        with monkeypatch.context() as patch:
            patch.setattr(socket_fence.socket, "socket", fail)
            with pytest.raises(ConnectionError, match=unfound):
                fence(port, ["127.0.0.1"])
        with monkeypatch.context() as patch:
            patch.setattr(socket_fence, "_is_tcp_at", fail)
            with pytest.raises(ConnectionError, match=unfound):
                fence(port, ["127.0.0.1"])
        assert os.listdir("/proc/self/fd") == before
