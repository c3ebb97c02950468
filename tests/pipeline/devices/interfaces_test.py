"""Addresses belong to the interfaces that the system says."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from lingvo_pipe.pipeline.devices import interfaces
from lingvo_pipe.pipeline.devices.interfaces import (
    InterfaceAddress,
    common_interface,
    interface_addresses,
)

KNOWN = [
    InterfaceAddress("lo", "127.0.0.1"),
    InterfaceAddress("lo", "192.0.2.9"),
    InterfaceAddress("eth0", "192.0.2.1"),
    InterfaceAddress("eth0", "fe80::1"),
    InterfaceAddress("eth1", "192.0.2.2"),
]


def test_all_addresses_are_this_machine_s_own() -> None:
    found = interface_addresses()
    names = {name for _, name in socket.if_nameindex()}
    assert InterfaceAddress("lo", "127.0.0.1") in found
    assert {each.interface for each in found} <= names
    for each in found:
        if ":" not in each.ip:
            with socket.socket() as probe:
                probe.bind((each.ip, 0))


def test_addresses_of_version_6_are_those_that_the_kernel_lists() -> None:
    listed = Path("/proc/net/if_inet6")
    lines = listed.read_text().splitlines() if listed.exists() else []
    found = [
        (each.interface, socket.inet_pton(socket.AF_INET6, each.ip).hex())
        for each in interface_addresses()
        if ":" in each.ip
    ]
    assert sorted(found) == sorted((x.split()[5], x.split()[0]) for x in lines)


@pytest.mark.parametrize(
    ("addresses", "name"),
    [
        (["127.0.0.1"], "lo"),
        (["127.0.0.2", "::1"], "lo"),
        (["192.0.2.1", "fe80::1%eth0"], "eth0"),
        (["192.0.2.2"], "eth1"),
        (["127.0.1.1", "192.0.2.1"], None),
        (["192.0.2.1", "192.0.2.2"], None),
        (["192.0.2.3"], None),
        # Who is elsewhere does not come in by the loopback interface.
        (["192.0.2.9"], None),
    ],
)
def test_the_common_interface_is_that_of_all(
    addresses: list[str], name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interfaces, "interface_addresses", lambda: KNOWN)
    assert common_interface(addresses) == name
