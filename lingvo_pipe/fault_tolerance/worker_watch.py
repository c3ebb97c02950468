"""A watch over a job's workers. If a worker is lost, the job restarts and resumes.

    wait for all workers --> job, and a thread that asks all workers every few seconds
           ^                                        |
           +------- restart of the process <--------+ one is lost

A step or a connection waits forever for a worker that hangs. So the thread restarts the
whole process, whatever the main thread is doing.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context

from lingvo_pipe.core.errors import UserClusterError, exit_code_of
from lingvo_pipe.core.signals import FirstSignal, TerminationSignals
from lingvo_pipe.fault_tolerance.departures import Departures, Use
from lingvo_pipe.fault_tolerance.elastic_workers import ElasticWorkers
from lingvo_pipe.fault_tolerance.restarts import MAX_IN_A_ROW, Restarts
from lingvo_pipe.fault_tolerance.worker_status import LostWorkers

_MAX_PERIOD = 5.0  # Seconds between two questions, at most.
_POLL_SECONDS = 0.5
_LOG_SECONDS = 30.0
_JOIN_SECONDS = 6.0  # More than an unanswered message takes.
# Seconds after which workers may forget a trainer; long enough for a slow one.
_MIN_KEEP_ALIVE = 60
# Private to TensorFlow: seconds for which workers keep the objects of a silent client.
# A TensorFlow thread contacts them twice in that time, even during a long step.
_KEEP_ALIVE = "_KEEP_ALIVE_SECS"

# Failures of a connection; a worker's own failures have other codes.
_CONNECTION_ERRORS = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.DeadlineExceededError,
)


class WorkerWatch:
    """A watch over workers that restarts this process if a worker is lost.

    Args:
        timeout: seconds in which a running worker answers.
        patience: seconds in which all workers must come up.
        resumes: whether the job resumes from a checkpoint. If not, it starts again.
        elastic: the policy of a job that goes on without lost workers, or None.
        use: the job's use of its workers, or None if it saves no checkpoints.
        save: asks the run for a checkpoint. Returns whether all steps are saved.
        on_end: called before this process ends itself. It must not hang, even if the
            main thread does.
    """

    def __init__(
        self,
        workers: LostWorkers,
        timeout: float,
        patience: float,
        restarts: Restarts,
        resumes: bool,
        log: Callable[[str], None],
        elastic: ElasticWorkers | None = None,
        use: Use | None = None,
        save: Callable[[], bool] = lambda: False,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._workers, self._restarts = workers, restarts
        self._log, self._elastic, self._on_end = log, elastic, on_end
        self._timeout, self._patience = timeout, patience
        self._then = "resumes from the last checkpoint" if resumes else "starts again"
        self._departures = Departures(use, save, self._note_leaving) if use else None
        self._renewals: threading.Thread | None = None
        self._signal: FirstSignal | None = None
        self._is_over = threading.Event()
        self._ending = threading.RLock()  # Only one thread may end job or process.

    def begin(self) -> None:
        """Waits until workers are up, then starts threads that watch them.

        It waits for all workers, or in an elastic job for enough of them. Call this in
        the main thread, before anything connects to workers.

        Raises:
            ConnectionError: if a worker is missing for too long.
            SystemExit: if a termination signal comes meanwhile.
        """
        with TerminationSignals() as signals:
            self._wait_for_workers(signals)
        if self._elastic is not None and self._elastic.begin(self._workers):
            self._restarts.discount()
        if self._restarts.client_before is not None:
            # Otherwise workers would keep the objects of both processes.
            self._workers.forget(self._restarts.client_before)
        set_keep_alive(max(_MIN_KEEP_ALIVE, round(2 * self._timeout)))
        self._signal = FirstSignal()
        # Each on a thread of its own, since each may take long.
        self._start(lambda: self._period, self._workers.lost)
        if self._elastic is not None:
            self._start(lambda: self._period, self._added)
        if self._departures is not None:
            self._departures.use.renew(self._workers.used)
            self._renewals = self._start(self._period_of_departures, self._let_go)

    @contextlib.contextmanager
    def surviving(self) -> Iterator[None]:
        """Restarts this process if the block fails because a worker is lost."""
        try:
            yield
        except Exception as error:
            if self._signal is None:  # Nothing has connected to a worker.
                raise
            lost = self._workers.lost_after_failure()
            if not lost and (reason := _failed_connection(error)):
                lost = [f"The connection to a worker failed: {reason}"]
            if lost:
                self._restart(lost)
            raise
        finally:
            with self._ending:
                self._is_over.set()
                if self._signal is not None:
                    self._signal.close()
            if self._renewals is not None and self._departures is not None:
                self._renewals.join(_JOIN_SECONDS)
                self._departures.use.end(self._workers.used)

    def has_signal(self) -> bool:
        """Returns whether a termination signal has come."""
        return self._signal is not None and self._signal.get() is not None

    def lost(self) -> list[str]:
        """Returns a sentence for each lost worker, even one killed just now."""
        return self._workers.lost_after_failure()

    def _wait_for_workers(self, signals: TerminationSignals) -> None:
        begin, policy = time.monotonic(), self._elastic
        next_line = begin + _POLL_SECONDS  # No log line if workers come up at once.
        while True:
            absent, now = self._absent(), time.monotonic()
            left = begin + self._patience - now
            is_ready = not absent or (
                policy is not None and policy.goes_on(self._workers, absent, left)
            )
            if signals.last_signal_name is not None:
                self._write(self._stopped(signals.last_signal_name))
                sys.exit(128 + signal.Signals[signals.last_signal_name])
            if is_ready:
                return
            names, lack = ", ".join(absent.values()), policy.lack if policy else ""
            if left < 0:
                raise UserClusterError(
                    f"Cannot reach {names} within {self._patience:g} seconds."
                    + f" {lack}." * bool(lack),
                    hint="Start each with --job=worker --task=<its number> and the "
                    "same --cluster, or raise --wait_for_workers_seconds.",
                )
            seconds = round(policy.wait if policy and not lack else left)
            if now > next_line and seconds:
                line = f"Waiting for {names}, {seconds} s at most."
                self._write(line + f" {lack}." * bool(lack))
                next_line = now + _LOG_SECONDS
            time.sleep(_POLL_SECONDS)

    def _absent(self) -> dict[int, str]:
        if self._elastic is not None:
            return self._elastic.absent(self._workers)
        return self._workers.absent()

    def _stopped(self, name: str) -> str:
        return f"Stopped by {name}. The same command {self._then}."

    def _start(
        self, period: Callable[[], float], changes: Callable[[], list[str]]
    ) -> threading.Thread:
        thread = threading.Thread(
            target=self._watch, args=(period, changes), daemon=True
        )
        thread.start()
        return thread

    def _watch(
        self, period: Callable[[], float], changes: Callable[[], list[str]]
    ) -> None:
        try:
            while not self._is_over.wait(period()):
                if changed := changes():
                    self._restart(changed)
        except Exception as error:
            with self._ending:
                if not self._is_over.is_set():
                    self._give_up("Cannot watch the workers any more", error)

    @property
    def _period(self) -> float:
        return min(_MAX_PERIOD, self._timeout / 4)

    def _period_of_departures(self) -> float:
        assert self._departures is not None
        return _POLL_SECONDS if self._departures.are_pending else self._period

    def _let_go(self) -> list[str]:
        assert self._departures is not None
        if self.has_signal():  # The run saves anyway, and then all workers may leave.
            self._departures.use.renew(self._workers.used)
            return []
        tasks = self._departures.look(self._workers.used)
        if self._elastic is not None and tasks:
            self._elastic.leave_out(tasks)
        return [f"{self._workers.name(task)} is leaving." for task in sorted(tasks)]

    def _note_leaving(self, task: int) -> None:
        name = self._workers.name(task)
        self._write(f"{name} is leaving: the run saves what is not saved yet.")

    def _added(self) -> list[str]:
        assert self._elastic is not None
        if self.has_signal():
            return []
        return [f"{name} is back." for name in self._elastic.added(self._workers)]

    def _restart(self, lost: Sequence[str]) -> None:
        with self._ending:
            if self._is_over.is_set():
                return
            try:
                self._end_or_restart(lost)
            except Exception as error:
                self._give_up("Cannot restart this process", error)

    def _end_or_restart(self, lost: Sequence[str]) -> NoReturn:
        for line in lost:
            self._write(line)
        self._restarts.finish_saving()
        self._end_if_asked()
        if self._restarts.in_a_row >= MAX_IN_A_ROW:
            self._write(
                f"error: Workers were lost {MAX_IN_A_ROW + 1} times in a row without "
                "anything new on file. See what ends them, or save more often by "
                f"task.train.save_interval_steps. The same command {self._then}."
            )
            self._exit(UserClusterError.exit_code)
        waits, variables = "waits for all workers", {}
        if self._elastic is not None:
            seconds = self._elastic.lost_seconds
            waits = f"waits {seconds:g} s at most for workers that are missing"
            self._elastic.lose(self._workers.ended_alone)
            variables = self._elastic.left_out.variables()
        self._write(f"This process {waits}, and {self._then}.")
        self._restarts.again(
            self._workers.client(), " ".join(lost), self._end_if_asked, **variables
        )

    def _end_if_asked(self) -> None:
        assert self._signal is not None
        first = self._signal.get()
        if first is not None:
            self._write(self._stopped(first.name))
            self._exit(128 + first)

    def _give_up(self, problem: str, error: Exception) -> NoReturn:
        reason = str(error) or type(error).__name__
        self._write(f"error: {problem}: {reason}. The same command {self._then}.")
        is_lost = bool(_failed_connection(error))
        self._exit(UserClusterError.exit_code if is_lost else exit_code_of(error))

    def _exit(self, code: int) -> NoReturn:
        try:
            self._on_end()
        finally:
            os._exit(code)

    def _write(self, line: str) -> None:
        with contextlib.suppress(OSError):  # The output is closed.
            self._log(line)


def _failed_connection(error: BaseException) -> str:
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, _CONNECTION_ERRORS):
            return seen.message.partition("\n")[0] or type(seen).__name__
        seen = seen.__cause__ or seen.__context__
    return ""


def set_keep_alive(seconds: int) -> bool:
    """Sets for how many seconds workers keep the objects of a silent client.

    The value applies to later connections. TensorFlow's default is 10 minutes. Returns
    False if this TensorFlow has no such setting.
    """
    if not hasattr(context, _KEEP_ALIVE):
        return False
    setattr(context, _KEEP_ALIVE, seconds)
    return True


def own_client_number() -> int | None:
    """Returns the number by which workers know this process, or None if none do."""
    handle = getattr(context.context(), "_context_handle", None)
    read = getattr(pywrap_tfe, "TFE_GetContextId", None)
    is_remote = context.context().get_server_def() is not None
    return int(read(handle)) if handle and read and is_remote else None
