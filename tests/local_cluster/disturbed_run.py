"""A local cluster whose processes are killed and stopped."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from subprocess import Popen
from typing import TextIO

# Seconds in which what is waited for must come, on a machine that is busy.
_PATIENCE = 180.0
_POLL = 0.05
_FAULT = "--- "  # Before what was done, among the lines that were said.


@dataclass(frozen=True)
class Fault:
    """What is done to a process.

    Attributes:
        signal: SIGKILL or SIGSTOP.
        member: the process's name.
        is_early: whether it comes while the cluster recovers from the one before.
    """

    signal: signal.Signals
    member: str
    is_early: bool = False


class RunningCluster:
    """A local cluster, and what it says.

    Args:
        process: the local cluster, with pipes for what it says.
    """

    def __init__(self, process: Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=[source], daemon=True)
            for source in (process.stdout, process.stderr)
            if source is not None
        ]
        for reader in self._readers:
            reader.start()

    @property
    def said(self) -> str:
        """All lines so far."""
        return "\n".join(self.lines)

    def pid(self, member: str) -> int | None:
        """Of the process that bears a name; None: it was not started yet."""
        found = re.findall(rf"^{member}: process (\d+)\.$", self.said, re.M)
        return int(found[-1]) if found else None

    def pids(self) -> list[int]:
        """Of all processes that it has ever started."""
        return [int(n) for n in re.findall(r"^\S+: process (\d+)\.$", self.said, re.M)]

    def trains(self) -> bool:
        """Whether a trainer that has begun since the last fault has made a step."""
        since = self.said.rpartition(_FAULT)[2]
        begun = since.partition("trainer | parameters: ")[2]
        return "trainer | step " in begun

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Waits until something holds."""
        end = time.monotonic() + _PATIENCE
        while not holds():
            assert time.monotonic() < end, self.said
            assert self.process.poll() is None, self.said
            time.sleep(_POLL)

    def wait(self) -> int:
        """Waits for its end; returns its exit code."""
        code = self.process.wait(_PATIENCE)
        for reader in self._readers:
            reader.join()
        return code

    def disturb(self, faults: list[Fault], chance: random.Random) -> list[str]:
        """Does all this to it, one after another; returns what was done when."""
        done = []
        last: dict[str, int | None] = {}
        for fault in faults:
            if not fault.is_early:
                self.wait_until(self.trains)
            delay = chance.uniform(0.0, 4.0 if fault.is_early else 0.3)
            time.sleep(delay)
            known = (None, last.get(fault.member))
            pid = self._wait_for_pid(fault.member, known)
            os.kill(pid, fault.signal)
            last[fault.member] = pid
            since = "the fault before" if fault.is_early else "a step"
            done.append(
                f"{fault.signal.name} of {fault.member}, {delay:.2f} s after {since}"
            )
            self.lines.append(f"{_FAULT}{done[-1]}")
        return done

    def _wait_for_pid(self, member: str, known: tuple[int | None, ...]) -> int:
        """The id of a process with a name that is none of those known."""
        self.wait_until(lambda: self.pid(member) not in known)
        pid = self.pid(member)
        assert pid is not None
        return pid

    def _read(self, source: TextIO) -> None:
        for line in source:
            self.lines.append(line.rstrip("\n"))
