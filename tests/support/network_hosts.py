"""Hosts on this machine: network namespaces whose network can be cut."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import lingvo_pipe

_ROOT = Path(lingvo_pipe.__file__).parents[1]
_SUBNET = "10.213.57"


class Host(NamedTuple):
    """A network namespace with an address."""

    name: str
    ip: str

    def command(self, *arguments: str) -> list[str]:
        """Returns the command that starts Python on the host."""
        return ["ip", "netns", "exec", self.name, sys.executable, *arguments]

    def environment(self) -> dict[str, str]:
        """Returns the environment of a task."""
        paths = os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])
        return {**os.environ, "PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": "-1"}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Starts Python on the host, with pipes for its input and output."""
        return subprocess.Popen(
            self.command(*arguments),
            env=self.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def connects(self, address: str) -> bool:
        """Returns whether a process of the host gets an answer at `ip:port`."""
        ip, _, port = address.partition(":")
        code = f"import socket; socket.create_connection(({ip!r}, {port}), 2.0)"
        return (
            subprocess.run(self.command("-c", code), capture_output=True).returncode
            == 0
        )


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@contextlib.contextmanager
def network_hosts(number: int = 3) -> Iterator[list[Host]]:
    """Yields hosts that reach each other; skips the test where there can be none."""
    if shutil.which("ip") is None:
        pytest.skip("needs the command ip")
    pid = os.getpid()
    hosts = [Host(f"lingvo{pid}-{i}", f"{_SUBNET}.{i}") for i in range(1, number + 1)]
    first = hosts[0].name
    with contextlib.ExitStack() as stack:
        try:
            for host in hosts:
                _ip("netns", "add", host.name)
                stack.callback(_ip, "netns", "del", host.name)
        except subprocess.CalledProcessError as error:
            pytest.skip(error.stderr.decode())
        # The bridge is on the first host, whose address it has.
        _ip("-n", first, "link", "add", "own", "type", "bridge")
        for i, host in enumerate(hosts):
            _ip("-n", host.name, "link", "set", "lo", "up")
            if i:
                pair = ["link", "add", "own", "type", "veth", "peer", "name", f"to{i}"]
                _ip("-n", host.name, *pair, "netns", first)
                _ip("-n", first, "link", "set", f"to{i}", "master", "own", "up")
            _ip("-n", host.name, "address", "add", f"{host.ip}/24", "dev", "own")
            _ip("-n", host.name, "link", "set", "own", "up")
        yield hosts


def cut(hosts: list[Host], is_cut: bool = True) -> None:
    """Cuts or mends the way between the second and third host."""
    for i in (1, 2):
        isolated = ["bridge_slave", "isolated", "on" if is_cut else "off"]
        _ip("-n", hosts[0].name, "link", "set", f"to{i}", "type", *isolated)


def set_link(hosts: list[Host], number: int, is_up: bool) -> None:
    """Cuts or mends the way between one host, not the first, and all others."""
    state = "up" if is_up else "down"
    _ip("-n", hosts[0].name, "link", "set", f"to{number}", state)
