"""Restricts a listening port of this process to some addresses and senders.

TensorFlow's server listens at every address, and executes any client's code. So a
kernel filter (classic BPF) on the server's sockets drops packets to other addresses. If
sources are given, the filter also drops packets from other sources. Recent kernels
allow a filter only with the capability CAP_NET_ADMIN. Without it, the sockets are bound
to the addresses' network interface, which every process may do since Linux 5.7. The
sockets then answer any source, at all addresses of that interface and at no others.
"""

import contextlib
import ctypes
import ipaddress
import os
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from lingvo_pipe.core.errors import UserConnectionError
from lingvo_pipe.pipeline.devices.own_addresses import (
    ALL_FLAG,
    InterfaceAddress,
    answers,
    common_interface,
    interface_addresses,
)

_PROBE_SECONDS = 0.3
# Seconds between searches for a listener, and the number of searches. TensorFlow's
# server listens first. It answers only after it has exchanged several messages with
# each worker, which takes longer than the time between searches.
_SEARCH_SECONDS, _MAX_SEARCHES = 0.001, 60_000
_LOOPBACK = [InterfaceAddress("lo", ip) for ip in ("127.0.0.1", "127.0.0.2", "::1")]
_DESCRIPTORS = Path("/proc/self/fd")

_SO_BINDTODEVICE, _SO_ATTACH_FILTER = 25, 26
_MAX_INTERFACE_NAME = 16
# From linux/filter.h: instructions, and the offset of the IP header.
_LOAD_WORD, _LOAD_BYTE, _AND, _RETURN = 0x20, 0x30, 0x54, 0x06
_JUMP, _JUMP_IF_EQUAL = 0x05, 0x15
_IP_HEADER = -0x100000 & 0xFFFFFFFF
_VERSION_BITS, _VERSION_4 = 0xF0, 0x40
_SOURCE, _DESTINATION = {4: 12, 6: 8}, {4: 16, 6: 24}
_KEEP, _DROP = 0xFFFFFFFF, 0

# Operation, jump if true, jump if false, operand.
Instruction = tuple[int, int, int, int]


def restrict_listeners(
    port: int, addresses: Sequence[str], sources: Sequence[str] = ()
) -> bool:
    """Restricts this process's listeners at a port to IP addresses of this machine.

    The listeners then answer only `sources`, or all sources if none are given. Earlier
    connections of other clients are closed. Without CAP_NET_ADMIN, the listeners are
    only bound to the addresses' network interface, and answer any source there. The
    result is then False, and otherwise True.

    Raises:
        ConnectionError: if the system rejects the restriction, or ignores it.
    """
    try:
        interfaces = _restrict(port, addresses, sources)
        forbidden = _forbidden_addresses(addresses, interfaces)
    except OSError as error:
        raise _restriction_error(port, addresses, str(error.strerror)) from error
    if not interfaces:
        raise _restriction_error(port, addresses, "no listening socket was found")
    answering = [ip for ip in forbidden if answers(ip, port, _PROBE_SECONDS)]
    if answering:
        reason = f"it still answers at {', '.join(answering)}"
        raise _restriction_error(port, addresses, reason)
    close_other_connections(port, addresses, sources)
    return not any(interfaces)


@contextlib.contextmanager
def restricting_early(
    port: int, addresses: Sequence[str], sources: Sequence[str] = ()
) -> Iterator[None]:
    """Restricts a port as soon as the code of the `with` block listens at the port.

    A thread looks for the listener while the block runs. The thread sets the same
    restriction as `restrict_listeners`, but does not check it and ignores errors. Call
    `restrict_listeners` after the block.
    """
    ended = threading.Event()

    def restrict() -> None:
        # The restriction after the block raises the same errors.
        with contextlib.suppress(OSError):
            for _ in range(_MAX_SEARCHES):
                if _restrict(port, addresses, sources):
                    close_other_connections(port, addresses, sources)
                    return
                if ended.wait(_SEARCH_SECONDS):
                    return

    early = threading.Thread(target=restrict, name="listener restriction", daemon=True)
    early.start()
    try:
        yield
    finally:
        ended.set()
        early.join()


def close_other_connections(
    port: int, addresses: Sequence[str], sources: Sequence[str] = ()
) -> None:
    """Shuts down the connections at a port whose packets a filter would drop."""
    for tcp_socket in _sockets(port):
        with tcp_socket, contextlib.suppress(OSError):  # It was closed meanwhile.
            if not _listens(tcp_socket) and (
                _plain_ip(tcp_socket.getsockname()) not in addresses
                or (sources and _plain_ip(tcp_socket.getpeername()) not in sources)
            ):
                tcp_socket.shutdown(socket.SHUT_RDWR)


def _plain_ip(address: Sequence[object]) -> str:
    return str(address[0]).removeprefix("::ffff:")


def filter_program(
    addresses: Sequence[str], sources: Sequence[str] = ()
) -> list[Instruction]:
    """Returns a filter that passes packets from `sources`, or all, to `addresses`."""
    version_4, version_6 = (
        [
            *_one_of(version, _DESTINATION, addresses),
            *(_one_of(version, _SOURCE, sources) if sources else []),
            (_RETURN, 0, 0, _KEEP),
        ]
        for version in (4, 6)
    )
    return [
        (_LOAD_BYTE, 0, 0, _IP_HEADER),
        (_AND, 0, 0, _VERSION_BITS),
        (_JUMP_IF_EQUAL, 1, 0, _VERSION_4),
        (_JUMP, 0, 0, len(version_4)),
        *version_4,
        *version_6,
    ]


def _one_of(
    version: int, field: dict[int, int], addresses: Sequence[str]
) -> list[Instruction]:
    """Returns instructions that drop a packet unless a field is in `addresses`."""
    ips = [ipaddress.ip_address(address.partition("%")[0]) for address in addresses]
    program: list[Instruction] = [(_RETURN, 0, 0, _DROP)]
    for packed in reversed([ip.packed for ip in ips if ip.version == version]):
        words = struct.unpack(f"!{len(packed) // 4}I", packed)
        compared: list[Instruction] = []
        for i, word in enumerate(words):
            offset = (_IP_HEADER + field[version] + 4 * i) & 0xFFFFFFFF
            # Skips the rest of this address, and its _JUMP.
            skip = 2 * (len(words) - i - 1) + 1
            compared += [(_LOAD_WORD, 0, 0, offset), (_JUMP_IF_EQUAL, 0, skip, word)]
        program = [*compared, (_JUMP, 0, 0, len(program)), *program]
    return program


def attach_filter(listener: socket.socket, program: Sequence[Instruction]) -> None:
    """Attaches a kernel filter to a socket, in place of any earlier filter.

    Raises:
        OSError: if the system refuses the filter.
    """
    packed = b"".join(struct.pack("HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(packed)
    option = struct.pack("HL", len(program), ctypes.addressof(buffer))
    listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, option)


def _restrict(
    port: int, addresses: Sequence[str], sources: Sequence[str]
) -> list[str | None]:
    """Restricts the listeners at a port, by filters if the system allows filters.

    For each listener, returns the interface that it is bound to, or None with a filter.
    """
    interfaces = []
    for tcp_socket in _sockets(port):
        with tcp_socket:
            if _listens(tcp_socket):
                interfaces.append(_restrict_listener(tcp_socket, addresses, sources))
    return interfaces


def _restrict_listener(
    listener: socket.socket, addresses: Sequence[str], sources: Sequence[str]
) -> str | None:
    try:
        attach_filter(listener, filter_program(addresses, sources))
    except PermissionError as error:
        interface = common_interface(addresses)
        if interface is None:
            raise PermissionError(
                error.errno,
                "a filter needs the capability CAP_NET_ADMIN, and without a filter all "
                "these addresses must be on one network interface",
            ) from error
        _bind_to(listener, interface)
        return interface
    return None


def _bind_to(listener: socket.socket, interface: str) -> None:
    name = interface.encode()
    bound_name = listener.getsockopt(
        socket.SOL_SOCKET, _SO_BINDTODEVICE, _MAX_INTERFACE_NAME
    )
    if bound_name.rstrip(b"\0") == name:
        return  # Binding twice is not permitted.
    try:
        listener.setsockopt(socket.SOL_SOCKET, _SO_BINDTODEVICE, name)
    except PermissionError as error:
        raise PermissionError(
            error.errno, "a filter needs the capability CAP_NET_ADMIN"
        ) from error


def _forbidden_addresses(
    addresses: Sequence[str], interfaces: Sequence[str | None]
) -> dict[str, None]:
    if any(interfaces):
        ips = [
            ip
            for interface, ip in [*_LOOPBACK, *interface_addresses()]
            if interface not in interfaces
        ]
    else:
        ips = [ip for _, ip in _LOOPBACK if ip not in addresses]
    # A link-local address means nothing without its interface.
    return dict.fromkeys(ip for ip in ips if not ipaddress.ip_address(ip).is_link_local)


def _sockets(port: int) -> Iterator[socket.socket]:
    for entry in os.listdir(_DESCRIPTORS):
        with contextlib.ExitStack() as stack:
            try:
                if not os.readlink(_DESCRIPTORS / entry).startswith("socket:"):
                    continue
                copy = stack.enter_context(_copy(int(entry)))
                if not _is_tcp_at(copy, port):
                    continue
            except OSError:  # Closed meanwhile.
                continue
            stack.pop_all()  # The caller closes it.
            yield copy


def _copy(descriptor: int) -> socket.socket:
    copied = os.dup(descriptor)
    try:
        return socket.socket(fileno=copied)
    except OSError:
        os.close(copied)
        raise


def _is_tcp_at(any_socket: socket.socket, port: int) -> bool:
    is_ip = any_socket.family in (socket.AF_INET, socket.AF_INET6)
    is_tcp = is_ip and any_socket.type == socket.SOCK_STREAM
    return is_tcp and any_socket.getsockname()[1] == port


def _listens(tcp_socket: socket.socket) -> bool:
    return bool(tcp_socket.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _restriction_error(
    port: int, addresses: Sequence[str], reason: str
) -> ConnectionError:
    return UserConnectionError(
        f"Cannot restrict port {port} to {', '.join(addresses)}: {reason}.",
        hint=f"Anyone who reaches this port can execute code. Pass {ALL_FLAG} only on "
        "a trusted network.",
    )
