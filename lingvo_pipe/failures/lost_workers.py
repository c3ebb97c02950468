"""Which workers are no longer what they were, told from their answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from lingvo_pipe.failures.worker_answers import Answer, Questions

# Seconds between two looks at a worker that is gone: its machine may have been busy.
_TO_BE_SURE = 1.0
# Seconds in which a process that was killed may still seem to be there.
_TO_HANG_UP = 2.0
# Seconds in which a worker answers that has come up.
_SOON = 5.0


class ClientQuestions(Questions, Protocol):
    """Asks all workers, about their clients too; see `WorkerAnswers`."""

    def forgotten(self, client: int, seconds: float) -> Sequence[bool]:
        """Which of them do not know a client any more."""

    def forget(self, client: int, seconds: float) -> None:
        """Has them free what a client has made there."""


class LostWorkers:
    """Finds workers that are gone, have restarted or do not answer.

    Args:
        addresses: of worker 0, 1, ...
        questions: to them, in this order.
        timeout: seconds in which a worker that runs answers.
        client: returns the number by which they know this process; None: they don't.
        sleep: waits for so many seconds.

    Attributes:
        client: as given.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        questions: ClientQuestions,
        timeout: float,
        client: Callable[[], int | None],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._names = [f"worker:{i} at {a}" for i, a in enumerate(addresses)]
        self._questions, self._timeout, self._sleep = questions, timeout, sleep
        self.client = client
        self._known: Sequence[bytes | None] = [None] * len(self._names)

    def absent(self) -> list[str]:
        """Names of workers that don't answer soon; knows the others from now on."""
        answers = self._questions.ask(min(self._timeout, _SOON))
        self._known = [answer.identity for answer in answers]
        return [
            name
            for name, answer in zip(self._names, answers, strict=True)
            if answer.identity is None
        ]

    def lost(self) -> list[str]:
        """What has become of workers, a sentence for each that is lost."""
        answers = self._questions.ask(self._timeout)
        if any(answer.is_gone for answer in answers):
            self._sleep(_TO_BE_SURE)
            answers = self._questions.ask(self._timeout)
        fates = [
            self._fate(answer, known)
            for answer, known in zip(answers, self._known, strict=True)
        ]
        if not any(fates):
            fates = self._fates_of_forgetful()
        return [
            f"{name} {fate}."
            for name, fate in zip(self._names, fates, strict=True)
            if fate
        ]

    def lost_after_failure(self) -> list[str]:
        """As `lost`, of workers one of which may just have been killed."""
        return self.lost() or self._look_again()

    def forget(self, client: int) -> None:
        """Has all workers free what a client that is gone has made there."""
        self._questions.forget(client, _SOON)

    def _look_again(self) -> list[str]:
        self._sleep(_TO_HANG_UP)
        return self.lost()

    def _fate(self, answer: Answer, known: bytes | None) -> str:
        if answer.is_gone:
            return "is gone"
        if answer.identity is None:
            return f"has not answered for {self._timeout:g} seconds"
        return "has restarted" if answer.identity != known else ""

    def _fates_of_forgetful(self) -> list[str]:
        """A worker forgets a process that says nothing, for it was stopped itself."""
        client = self.client()
        if client is None:
            return [""] * len(self._names)
        forgotten = self._questions.forgotten(client, self._timeout)
        return ["has forgotten this process" if is_so else "" for is_so in forgotten]
