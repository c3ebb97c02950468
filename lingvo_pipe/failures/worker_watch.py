"""Has a job survive the loss of its workers: it waits for all of them, and goes on.

    wait for all workers --> job, and a thread that asks all workers every few seconds
           ^                                        |
           +------- restart of the process <--------+ one is lost

A worker that is killed fails the step at once. One that hangs fails nothing: the step,
or even the connection, waits for it. So the thread restarts the process, wherever its
main thread is.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

import tensorflow as tf
import tqdm

from lingvo_pipe.failures.asked_to_end import AskedToEnd
from lingvo_pipe.failures.keep_alive import forget_trainers_after, own_number
from lingvo_pipe.failures.lost_workers import LostWorkers
from lingvo_pipe.failures.progress import progress_of
from lingvo_pipe.failures.restarts import MOST_IN_A_ROW, ProcessStart, Restarts
from lingvo_pipe.failures.worker_answers import WorkerAnswers

_EVERY = 5.0  # Seconds between two questions, at most.
_PAUSE = 0.5
_SAY_EVERY = 30.0
# Seconds after which workers forget a trainer, at least: one that is only slow lives.
_TO_FORGET = 60

_GOES_ON = "goes on from the last checkpoint, if one was saved"

# What a connection's failure is; a worker's own failure has other codes.
_OF_CONNECTIONS = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.DeadlineExceededError,
)


class WorkerWatch:
    """Waits for workers, watches them, and restarts this process if one is lost.

    Args:
        workers: finds those that are lost.
        timeout: seconds in which a worker that runs answers.
        patience: seconds in which all workers must come up.
        restarts: of this process.
        goes_on: whether the job goes on from a checkpoint; else it begins anew.
        say: takes a line for the user.
        on_end: called before this process ends at once, as it does where its main
            thread may hang; must not hang itself.
    """

    def __init__(
        self,
        workers: LostWorkers,
        timeout: float,
        patience: float,
        restarts: Restarts,
        goes_on: bool,
        say: Callable[[str], None],
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._workers, self._restarts = workers, restarts
        self._say, self._on_end = say, on_end
        self._timeout, self._patience = timeout, patience
        self._then = _GOES_ON if goes_on else "begins anew"
        self._asked_to_end: AskedToEnd | None = None
        self._is_over = threading.Event()
        self._ending = threading.RLock()  # One thread ends the job, or this process.

    def begin(self) -> None:
        """Waits until all workers are there, and watches them from now on.

        To be called in the main thread, before anything connects to them.

        Raises:
            ConnectionError: if they don't come.
        """
        self._await_all()
        if self._restarts.client_before is not None:
            # Else they keep what it has made beside what this process makes.
            self._workers.forget(self._restarts.client_before)
        forget_trainers_after(max(_TO_FORGET, round(2 * self._timeout)))
        self._asked_to_end = AskedToEnd()
        threading.Thread(target=self._watch, daemon=True).start()

    @contextlib.contextmanager
    def surviving(self) -> Iterator[None]:
        """Restarts this process if what is done within fails for want of a worker."""
        try:
            yield
        except Exception as error:
            if self._asked_to_end is None:  # Nothing has connected to a worker.
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
                if self._asked_to_end is not None:
                    self._asked_to_end.close()

    def _await_all(self) -> None:
        begin = time.monotonic()
        next_line = begin + _PAUSE  # Who comes at once is not waited for.
        while absent := self._workers.absent():
            now = time.monotonic()
            if now - begin > self._patience:
                raise ConnectionError(
                    f"Workers must be up for a job on them; {', '.join(absent)} can't "
                    f"be reached within {self._patience:g} seconds. Start each with "
                    "--job=worker --task=<its number> and the same --cluster, or raise "
                    "--wait_for_workers_seconds."
                )
            left = round(begin + self._patience - now)
            if now > next_line and left:
                self._tell(f"Waiting for {', '.join(absent)}, {left} s at most.")
                next_line = now + _SAY_EVERY
            time.sleep(_PAUSE)

    def _watch(self) -> None:
        try:
            while not self._is_over.wait(min(_EVERY, self._timeout / 4)):
                lost = self._workers.lost()
                if lost:
                    self._restart(lost)
        except Exception as error:
            with self._ending:
                if not self._is_over.is_set():
                    self._give_up("Workers can't be watched any more", error)

    def _restart(self, lost: Sequence[str]) -> None:
        """Tells what is lost, and restarts, or ends, this process.

        Returns only if the job has ended meanwhile. The other thread may have seen it
        too, and waits for ever.
        """
        with self._ending:
            if self._is_over.is_set():
                return
            try:
                self._end_or_restart(lost)
            except Exception as error:
                self._give_up("This process could not be restarted", error)

    def _end_or_restart(self, lost: Sequence[str]) -> NoReturn:
        for line in lost:
            self._tell(line)
        assert self._asked_to_end is not None
        asked_by = self._asked_to_end.by()
        if asked_by is not None:
            self._tell(f"Stopped by {asked_by.name}. The same command {self._then}.")
            self._exit(128 + asked_by)
        if self._restarts.in_a_row >= MOST_IN_A_ROW:
            self._tell(
                "error: Workers must stay up between two checkpoints; they were lost "
                f"{MOST_IN_A_ROW + 1} times in a row without anything new on file. See "
                "what ends them, or save more often by "
                "task.train.save_interval_steps. The same command "
                f"{self._then}."
            )
            self._exit(1)
        self._tell(f"This process waits for all workers, and {self._then}.")
        self._restarts.again(self._workers.client())

    def _give_up(self, what: str, error: Exception) -> NoReturn:
        why = str(error) or type(error).__name__
        self._tell(f"error: {what}: {why}. The same command {self._then}.")
        self._exit(1)

    def _exit(self, code: int) -> NoReturn:
        try:
            self._on_end()
        finally:
            os._exit(code)

    def _tell(self, line: str) -> None:
        with contextlib.suppress(OSError):  # Nobody listens any more.
            self._say(line)


def watch_workers(
    workers: Sequence[str],
    timeout: float,
    patience: float,
    start: ProcessStart,
    job: str,
    logdir: str,
    on_end: Callable[[], None],
) -> WorkerWatch:
    """A watch for this process.

    Args:
        workers: addresses of worker 0, 1, ...
        timeout: see `WorkerWatch`.
        patience: likewise.
        start: how this process was started.
        job: what it does, as of --job.
        logdir: of its run.
        on_end: see `WorkerWatch`.
    """
    return WorkerWatch(
        LostWorkers(workers, WorkerAnswers(workers), timeout, own_number),
        timeout,
        patience,
        Restarts(start, lambda: progress_of(job, logdir)),
        goes_on=job == "trainer",
        say=tqdm.tqdm.write,
        on_end=on_end,
    )


def _failed_connection(error: BaseException) -> str:
    """What failed, if an error comes of a connection; else nothing."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, _OF_CONNECTIONS):
            return seen.message.partition("\n")[0] or type(seen).__name__
        seen = seen.__cause__ or seen.__context__
    return ""
