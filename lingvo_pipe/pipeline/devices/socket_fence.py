"""Keeps a port of this process from answering at all addresses. No TensorFlow.

TensorFlow's server listens at every address of its machine, whatever it is told, and
does what whoever reaches it asks. So a filter of the kernel (classic BPF) is put on its
sockets: a packet that is for another address is dropped, and whoever sends it gets no
answer.

Recent kernels let only who has the capability CAP_NET_ADMIN put one on TCP sockets.
Without it the sockets are bound to the addresses' network interface, which anybody may
do since Linux 5.7: they answer at all addresses of that interface, and at no other's.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from lingvo_pipe.pipeline.devices.interfaces import (
    InterfaceAddress,
    common_interface,
    interface_addresses,
)
from lingvo_pipe.pipeline.devices.own_addresses import ALL_FLAG
from lingvo_pipe.pipeline.devices.packet_filter import attach_filter, filter_program

_SO_BINDTODEVICE = 25
_LONGEST_NAME = 16
_FDS = Path("/proc/self/fd")

_TO_PROBE = 0.3  # Seconds.
_LOOPBACK = [InterfaceAddress("lo", ip) for ip in ("127.0.0.1", "127.0.0.2", "::1")]
# Seconds between looks for a listener, and how many looks there are at most.
_PAUSE, _LOOKS = 0.01, 6000


def fence(port: int, addresses: Sequence[str]) -> None:
    """Has all sockets of this process that listen at a port answer at these addresses.

    Without the capability CAP_NET_ADMIN, they may answer at other addresses of the
    same interface, too: at all loopback addresses if these are some.

    Args:
        port: where it listens.
        addresses: IP addresses of this machine.

    Raises:
        ConnectionError: if the system doesn't allow that, or does not do it.
    """
    try:
        interfaces = _fence_listeners(port, addresses)
        others = _elsewhere(addresses, interfaces)
    except OSError as error:
        raise _unfenced(port, addresses, str(error.strerror)) from error
    if not interfaces:
        raise _unfenced(port, addresses, "its socket is not found")
    answering = [ip for ip in others if _answers(ip, port)]
    if answering:
        reason = f"it still answers at {', '.join(answering)}"
        raise _unfenced(port, addresses, reason)


@contextlib.contextmanager
def fenced_meanwhile(port: int, addresses: Sequence[str]) -> Iterator[None]:
    """Fences a port as soon as it listens in the block, which may take long after that.

    At the end of the block it is seen that the fence holds, and who came before it is
    cut off.

    Raises:
        ConnectionError: as `fence`, at the end of the block.
    """
    ended = threading.Event()

    def fence_early() -> None:
        # What it raises, the fence at the end of the block does as well.
        with contextlib.suppress(OSError):
            for _ in range(_LOOKS):
                if _fence_listeners(port, addresses):
                    cut_off(port, addresses)
                    return
                if ended.wait(_PAUSE):
                    return

    early = threading.Thread(target=fence_early, name="fence", daemon=True)
    early.start()
    try:
        yield
    finally:
        ended.set()
        early.join()
    fence(port, addresses)
    cut_off(port, addresses)


def cut_off(port: int, addresses: Sequence[str]) -> None:
    """Ends connections to a port of this process at other addresses than these.

    They were made in the moment before the fence.
    """
    for each in _sockets(port):
        with each, contextlib.suppress(OSError):  # It was closed meanwhile.
            its_own = each.getsockname()[0].removeprefix("::ffff:")
            if not _listens(each) and its_own not in addresses:
                each.shutdown(socket.SHUT_RDWR)


def _fence_listeners(port: int, addresses: Sequence[str]) -> list[str | None]:
    """Fences what listens at a port; returns the interface of each, None: a filter."""
    interfaces = []
    for each in _sockets(port):
        with each:
            if _listens(each):
                interfaces.append(_fence_listener(each, addresses))
    return interfaces


def _fence_listener(listener: socket.socket, addresses: Sequence[str]) -> str | None:
    try:
        attach_filter(listener, filter_program(addresses))
    except PermissionError as error:
        interface = common_interface(addresses)
        if interface is None:
            raise PermissionError(
                error.errno,
                "a filter needs the capability CAP_NET_ADMIN, and these addresses are "
                "not those of one network interface, which would do without",
            ) from error
        _bind_to(listener, interface)
        return interface
    return None


def _bind_to(listener: socket.socket, interface: str) -> None:
    name = interface.encode()
    options = (socket.SOL_SOCKET, _SO_BINDTODEVICE)
    if listener.getsockopt(*options, _LONGEST_NAME).rstrip(b"\0") == name:
        return  # Twice is not permitted.
    try:
        listener.setsockopt(*options, name)
    except PermissionError as error:
        raise PermissionError(
            error.errno, "a filter needs the capability CAP_NET_ADMIN"
        ) from error


def _elsewhere(
    addresses: Sequence[str], interfaces: Sequence[str | None]
) -> dict[str, None]:
    """Addresses of this machine at which what is fenced must not answer."""
    if any(interfaces):
        known = [*_LOOPBACK, *interface_addresses()]
        others = [each.ip for each in known if each.interface not in interfaces]
    else:
        others = [each.ip for each in _LOOPBACK if each.ip not in addresses]
    # A link-local address means nothing without its interface.
    return dict.fromkeys(
        ip for ip in others if not ipaddress.ip_address(ip).is_link_local
    )


def _sockets(port: int) -> Iterator[socket.socket]:
    """Copies of this process's sockets that have a port: listeners, connections."""
    for entry in os.listdir(_FDS):
        with contextlib.ExitStack() as stack:
            try:
                if not os.readlink(_FDS / entry).startswith("socket:"):
                    continue
                copy = stack.enter_context(_copy(int(entry)))
                if not _is_tcp_at(copy, port):
                    continue
            except OSError:  # Closed meanwhile.
                continue
            stack.pop_all()  # Whoever gets it closes it.
            yield copy


def _copy(descriptor: int) -> socket.socket:
    copied = os.dup(descriptor)
    try:
        return socket.socket(fileno=copied)
    except OSError:
        os.close(copied)
        raise


def _is_tcp_at(each: socket.socket, port: int) -> bool:
    is_ip = each.family in (socket.AF_INET, socket.AF_INET6)
    is_tcp = is_ip and each.type == socket.SOCK_STREAM
    return is_tcp and each.getsockname()[1] == port


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
