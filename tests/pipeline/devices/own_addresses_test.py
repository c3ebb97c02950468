"""A task answers at the addresses that others know it by."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from lingvo_pipe.pipeline.devices import own_addresses as module
from lingvo_pipe.pipeline.devices.own_addresses import own_addresses

# What this machine's hosts file is made to say.
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
def test_a_loopback_address_is_what_it_says(address: str, found: list[str]) -> None:
    assert own_addresses(address) == found
    assert own_addresses(address, ["other:1"]) == found


def test_localhost_is_this_machine() -> None:
    assert "127.0.0.1" in own_addresses("localhost:1")


def test_addresses_of_others_are_left_out() -> None:
    assert own_addresses("here:1", ["here:2"]) == ["127.0.0.1"]


def test_a_name_that_is_loopback_here_alone_has_the_address_that_others_see(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ways = {"other:1": "192.0.2.5", "debian:2": "127.0.0.1", "lost:1": None}
    monkeypatch.setattr(module, "_way_to", ways.get)
    assert own_addresses("debian:1", ["debian:2"]) == ["127.0.1.1"]
    both = ["127.0.1.1", "192.0.2.5"]
    assert own_addresses("debian:1", ["debian:2", "other:1"]) == both
    for others in ([], ["lost:1"], ["debian:2", "lost:1"]):
        with pytest.raises(ConnectionError, match=r"\bdebian:1\b.*\b127\.0\.1\.1\b"):
            own_addresses("debian:1", others)


@pytest.mark.parametrize(
    ("address", "pattern"),
    [
        ("there:1", r"\bthere:1\b.*\b192\.0\.2\.77\b.*--listen_on_all_addresses"),
        ("nowhere:1", r"\bnowhere:1\b.*\bEAI_NONAME\b"),
    ],
)
def test_other_machines_are_refused(address: str, pattern: str) -> None:
    with pytest.raises(ConnectionError, match=pattern):
        own_addresses(address)


def test_the_way_to_this_machine_is_within_it() -> None:
    assert module._way_to("127.0.0.3:9") == "127.0.0.1"
    assert module._way_to("nowhere:9") is None
