"""Keeps a trainer and its workers running until the trainer is done.

It is what Slurm or Kubernetes are elsewhere: it starts again what was killed, and kills
what hangs. A trainer that ends by itself, also with an error, has ended.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Protocol

from tools.local_cluster.process_state import is_stopped
from tools.local_cluster.stopped_time import StoppedTime

# How often processes are started again, of all together, before there is progress.
MOST_RESTARTS = 10
_EVERY = 0.2  # Seconds between two looks at them.
_ASKING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Process(Protocol):
    """See `Member`."""

    name: str

    @property
    def pid(self) -> int:
        """Of the process."""

    def start(self) -> None:
        """Starts it."""

    def exit_code(self) -> int | None:
        """None: it runs."""

    def send_signal(self, number: int) -> None:
        """Sends a signal."""

    def end(self) -> None:
        """Kills it."""


class Heartbeat(Protocol):
    """See `Pulse`."""

    def restarted(self) -> None:
        """Tells that it is another process now."""

    def was_up(self) -> bool:
        """Whether any of its processes has answered."""

    def is_hung(self) -> bool:
        """Whether it hangs."""


class Supervisor:
    """Starts processes, and keeps them running.

    Args:
        trainer: the process with whose end all end.
        workers: the others, each with its heartbeat.
        timeout: for how long, in seconds, a process may be stopped.
        progress: returns another text when the trainer has got on.
        say: takes a line for the user.
    """

    def __init__(
        self,
        trainer: Process,
        workers: Sequence[tuple[Process, Heartbeat]],
        timeout: float,
        progress: Callable[[], str],
        say: Callable[[str], None],
    ) -> None:
        self._trainer, self._workers = trainer, workers
        self._timeout, self._progress, self._say = timeout, progress, say
        self._members = [*(worker for worker, _ in workers), trainer]
        self._stopped = {member.name: StoppedTime() for member in self._members}
        self._restarts, self._reached = 0, progress()
        self._has_told_end = False
        self._asked: list[signal.Signals] = []

    def run(self) -> int:
        """Runs all until the trainer has ended; then ends the others, whatever happens.

        Returns:
            The trainer's exit code, or 128 and a signal's number if one ended it; 1 if
            processes die again and again.
        """
        before = {s: signal.signal(s, self._remember) for s in _ASKING}
        try:
            for member in self._members:
                member.start()
            while True:
                code = self._look()
                if code is not None:
                    return code
                time.sleep(_EVERY)
        finally:
            for member in reversed(self._members):
                member.end()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _look(self) -> int | None:
        """Does what is to be done now; returns the exit code at the end."""
        if len(self._asked) > 1:
            self._say(f"{self._asked[-1].name}: ending all processes.")
            return 128 + self._asked[-1]
        code = self._trainer.exit_code()
        if code is not None and (code >= 0 or self._asked or -code in _ASKING):
            self._say(f"The trainer has ended, {_how(code)}.")
            return code if code >= 0 else 128 - code
        for member in self._members:
            self._end_if_stopped(member)
        if self._asked:  # The trainer saves what it has, or notices that it can't.
            self._tell_end()
            return None
        for worker, heartbeat in self._workers:
            if worker.exit_code() is None and heartbeat.is_hung():
                self._end(worker, f"has not answered for {self._timeout:g} seconds")
        return self._end_if_none_comes_up() or self._restart_dead()

    def _tell_end(self) -> None:
        if not self._has_told_end:
            self._has_told_end = True
            self._say(
                f"{self._asked[0].name}: the trainer ends after its step; once more "
                "ends all processes at once."
            )

    def _end_if_stopped(self, member: Process) -> None:
        is_now = member.exit_code() is None and is_stopped(member.pid)
        if self._stopped[member.name].look(is_now) > self._timeout:
            self._end(member, f"has been stopped for {self._timeout:g} seconds")

    def _end(self, member: Process, why: str) -> None:
        self._say(f"{member.name} {why}: killing it.")
        member.end()

    def _end_if_none_comes_up(self) -> int | None:
        """1 if a worker can't come up, such as for want of its port; else None."""
        for worker, heartbeat in self._workers:
            code = worker.exit_code()
            if code is not None and code > 0 and not heartbeat.was_up():
                worker.end()  # Repeats the last of what it said.
                self._say(
                    f"error: Workers must come up; {worker.name} has ended, "
                    f"{_how(code)}, before it answered. See above what it said last."
                )
                return 1
        return None

    def _restart_dead(self) -> int | None:
        dead = [m for m in self._members if m.exit_code() is not None]
        for member in dead:
            progress = self._progress()
            if progress != self._reached:
                self._restarts, self._reached = 0, progress
            end = f"{member.name} has ended, {_how(member.exit_code())}"
            if self._restarts == MOST_RESTARTS:
                self._say(
                    f"error: Processes must stay up between two checkpoints; {end}, "
                    f"after {MOST_RESTARTS} restarts without a new one. See above what "
                    "it said last. The same command goes on from the last checkpoint."
                )
                return 1
            self._restarts += 1
            self._say(f"{end}: starting it again.")
            member.end()  # Repeats the last of what it said.
            member.start()
        for worker, heartbeat in self._workers:
            if worker in dead:
                heartbeat.restarted()
        return None

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self._asked.append(signal.Signals(number))
        if len(self._asked) == 1:
            self._trainer.send_signal(signal.SIGTERM)


def _how(code: int | None) -> str:
    assert code is not None
    if code >= 0:
        return f"with exit code {code}"
    return f"by {signal.Signals(-code).name}"
