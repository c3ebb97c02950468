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

# Maximum wait in seconds, on a busy machine.
_PATIENCE = 180.0
_POLL = 0.05
_FAULT = "--- "  # Before an injected fault, among the lines of output.


@dataclass(frozen=True)
class Fault:
    """An injected fault of a process.

    Attributes:
        signal: SIGKILL or SIGSTOP.
        member: the process's name.
        is_early: True while the cluster recovers from the fault before.
    """

    signal: signal.Signals
    member: str
    is_early: bool = False


class RunningCluster:
    """A local cluster and its output.

    Args:
        process: the local cluster, with pipes for its output.
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
    def output(self) -> str:
        """All lines so far."""
        return "\n".join(self.lines)

    def pid(self, member: str) -> int | None:
        """Returns the id of the last process with a name, or None."""
        found = re.findall(rf"^{member}: process (\d+)\.$", self.output, re.M)
        return int(found[-1]) if found else None

    def pids(self) -> list[int]:
        """Returns the ids of all processes that it has ever started."""
        return [
            int(n) for n in re.findall(r"^\S+: process (\d+)\.$", self.output, re.M)
        ]

    def trains(self) -> bool:
        """Returns True if a trainer started after the last fault has made a step."""
        since = self.output.rpartition(_FAULT)[2]
        trainers = since.partition("trainer | parameters: ")[2]
        return "trainer | step " in trainers

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Waits until a condition is true."""
        end = time.monotonic() + _PATIENCE
        while not condition():
            assert time.monotonic() < end, self.output
            assert self.process.poll() is None, self.output
            time.sleep(_POLL)

    def wait(self) -> int:
        """Waits for its end; returns its exit code."""
        code = self.process.wait(_PATIENCE)
        for reader in self._readers:
            reader.join()
        return code

    def disturb(self, faults: list[Fault], chance: random.Random) -> list[str]:
        """Injects the faults one after another; returns a line for each."""
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
        """Waits for a process with a name and an unknown id; returns the id."""
        self.wait_until(lambda: self.pid(member) not in known)
        pid = self.pid(member)
        assert pid is not None
        return pid

    def _read(self, source: TextIO) -> None:
        for line in source:
            self.lines.append(line.rstrip("\n"))
