"""Supervision of a trainer and its workers until the trainer ends.

Like Slurm or Kubernetes in a real cluster, a supervisor restarts processes that were
killed, and kills processes that hang. A trainer that exits by itself is not restarted,
even if it exits with an error.
"""

import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from lingvo_pipe.core.signals import TerminationSignals
from lingvo_pipe.tools.local_cluster.member import Member, Worker

# Maximum number of restarts, of all processes together, without progress.
MAX_RESTARTS = 10
_PERIOD = 0.2  # Seconds between two looks at the processes.
_TERMINATION = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_STOPPED = "T"  # By a signal such as SIGSTOP; under a debugger it would be t.


class Supervisor:
    """A supervisor that keeps processes running until the trainer ends.

    A process that a signal stops for more than `timeout` seconds is killed. The result
    of `progress()` changes with the trainer's progress. `log` takes lines for the user.
    """

    def __init__(
        self,
        trainer: Member,
        workers: Sequence[Worker],
        timeout: float,
        progress: Callable[[], str],
        log: Callable[[str], None],
    ) -> None:
        self._trainer, self._workers = trainer, workers
        self._timeout, self._progress, self._log = timeout, progress, log
        self._members = [*workers, trainer]
        self._stopped = {member.name: StoppedTime() for member in self._members}
        self._restarts, self._reached = 0, progress()
        self._has_asked = False  # Whether the trainer was asked to end.
        self._received: list[signal.Signals] = []

    def run(self) -> int:
        """Runs all processes until the trainer ends, and returns its exit code."""
        with TerminationSignals(_TERMINATION, self._received.append):
            try:
                for member in self._members:
                    member.start()
                while (code := self._look()) is None:
                    time.sleep(_PERIOD)
                return code
            finally:
                for member in reversed(self._members):
                    member.end()

    def _look(self) -> int | None:
        """Kills hung processes, and restarts processes that have ended.

        Returns the exit code if all processes are to end, else None.
        """
        received = self._received
        if len(received) > 1:
            self._log(f"{received[-1].name}: ending all processes.")
            return 128 + received[-1]
        code = self._trainer.exit_code()
        if code is not None and (code >= 0 or received or -code in _TERMINATION):
            self._log(f"The trainer has ended, {_how(code)}.")
            return code if code >= 0 else 128 - code
        for member in self._members:
            is_now = member.exit_code() is None and is_stopped(member.process.pid)
            if self._stopped[member.name].look(is_now) > self._timeout:
                self._kill(member, f"has been stopped for {self._timeout:g} seconds")
        if received:  # The trainer saves its step, or notices that it can't.
            # The handler does not send it: it may run before the trainer is started.
            if not self._has_asked:
                self._has_asked = True
                self._trainer.process.send_signal(signal.SIGTERM)
                self._log(
                    f"{received[0].name}: the trainer ends after its step; a second "
                    "signal ends all processes at once."
                )
            return None
        for worker in self._workers:
            if worker.exit_code() is None and worker.is_hung():
                self._kill(worker, f"has not answered for {self._timeout:g} seconds")
        for worker in self._workers:
            code = worker.exit_code() or 0
            if code > 0 and not worker.was_up:  # Such as without its port.
                worker.end()  # Forwards its last lines.
                self._log(
                    f"error: {worker.name} has ended, {_how(code)}, before it "
                    "answered. See its last lines above."
                )
                return 1
        return self._restart_dead()

    def _kill(self, member: Member, reason: str) -> None:
        self._log(f"{member.name} {reason}: killing it.")
        member.end()

    def _restart_dead(self) -> int | None:
        codes = ((member, member.exit_code()) for member in self._members)
        dead = {member: code for member, code in codes if code is not None}
        for member, code in dead.items():
            progress = self._progress()
            if progress != self._reached:
                self._restarts, self._reached = 0, progress
            end = f"{member.name} has ended, {_how(code)}"
            if self._restarts == MAX_RESTARTS:
                self._log(
                    f"error: {end}, after {MAX_RESTARTS} restarts without a new "
                    "checkpoint. See its last lines above. The same command resumes "
                    "from the last checkpoint."
                )
                return 1
            self._restarts += 1
            self._log(f"{end}: restarting it.")
            member.end()  # Forwards its last lines.
            member.start()
        return None


class StoppedTime:
    """A measurement of the time for which a process is stopped without a break."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds, self._last = 0.0, clock()

    def look(self, is_stopped: bool, limit: float = 1.0) -> float:
        """Records the state of the process, and returns its stopped time in seconds."""
        now = self._clock()
        passed, self._last = min(now - self._last, limit), now
        self._seconds = self._seconds + passed if is_stopped else 0.0
        return self._seconds


def is_stopped(pid: int) -> bool:
    """Returns True if a child process is stopped by a signal, such as SIGSTOP."""
    # The state follows the program's name, which may hold brackets and spaces itself.
    text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    return text.rpartition(")")[2].split()[0] == _STOPPED


def _how(code: int) -> str:
    return f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
