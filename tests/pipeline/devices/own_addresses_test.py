"""A task answers at the addresses by which other tasks know it."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from lingvo_pipe.core.errors import UserConnectionError
from lingvo_pipe.pipeline.devices import own_addresses as module
from lingvo_pipe.pipeline.devices.own_addresses import (
    InterfaceAddress,
    common_interface,
    interface_addresses,
    own_addresses,
    unused_ports,
)
from tests.support.errors import fails

# Entries of this machine's hosts file in these tests.
HOSTS = {
    "debian": ["127.0.1.1"],
    "here": ["127.0.0.1", "192.0.2.77"],
    "there": ["192.0.2.77"],
    "other": ["192.0.2.78"],
}


@pytest.fixture(autouse=True)
def _hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = socket.getaddrinfo

    def answer(host: str, *arguments: Any, **more: Any) -> Any:
        if host == "nowhere":
            raise socket.gaierror(-2, "EAI_NONAME")
        found = [asked(ip, *arguments, **more) for ip in HOSTS.get(host, [host])]
        return [entry for entries in found for entry in entries]

    monkeypatch.setattr(socket, "getaddrinfo", answer)


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("127.0.0.2:1", ["127.0.0.2"]),
        ("[::1]:1", ["::1"]),
        ("127.0.1.1:1", ["127.0.1.1"]),
    ],
)
def test_a_loopback_address_stands_for_itself(address: str, found: list[str]) -> None:
    assert own_addresses(address) == found
    assert own_addresses(address, ["other:1"]) == found


def test_localhost_is_this_machine() -> None:
    assert "127.0.0.1" in own_addresses("localhost:1")


def test_addresses_of_others_are_left_out() -> None:
    assert own_addresses("here:1", ["here:2"]) == ["127.0.0.1"]


def test_a_name_that_is_loopback_only_here_has_the_address_that_others_see(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sources = {"other:1": "192.0.2.5", "debian:2": "127.0.0.1", "lost:1": None}
    monkeypatch.setattr(module, "route_source", sources.get)
    assert own_addresses("debian:1", ["debian:2"]) == ["127.0.1.1"]
    both = ["127.0.1.1", "192.0.2.5"]
    assert own_addresses("debian:1", ["debian:2", "other:1"]) == both
    for others in ([], ["lost:1"], ["debian:2", "lost:1"]):
        with fails(UserConnectionError, path="debian:1", got="127.0.1.1"):
            own_addresses("debian:1", others)


@pytest.mark.parametrize(
    ("address", "got", "hint"),
    [
        ("there:1", "192.0.2.77", "--listen_on_all_addresses"),
        ("nowhere:1", "EAI_NONAME", ""),
    ],
)
def test_other_machines_are_refused(address: str, got: str, hint: str) -> None:
    with fails(UserConnectionError, path=address, got=got) as error:
        own_addresses(address)
    assert hint in error.value.hint


def test_the_route_to_this_machine_has_a_loopback_source() -> None:
    assert module.route_source("127.0.0.3:9") == "127.0.0.1"
    assert module.route_source("nowhere:9") is None


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
        # Packets of other machines do not arrive at the loopback interface.
        (["192.0.2.9"], None),
    ],
)
def test_all_addresses_are_on_the_common_interface(
    addresses: list[str], name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "interface_addresses", lambda: KNOWN)
    assert common_interface(addresses) == name


@pytest.mark.parametrize(
    ("system_range", "end"), [("32768\t60999", 32768), ("9000\t65000", 65536)]
)
def test_unused_ports_are_different_and_outside_the_systems_range(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, system_range: str, end: int
) -> None:
    path = tmp_path / "ip_local_port_range"
    path.write_text(system_range)
    monkeypatch.setattr(module, "_SYSTEM_PORTS", path)
    found = unused_ports(20)
    assert len(set(found)) == 20
    assert all(10_000 <= port < end for port in found)
