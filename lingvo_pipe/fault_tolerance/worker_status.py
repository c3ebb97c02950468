"""A search for lost workers: gone, restarted, silent, or cut off from other workers.

Each worker is asked separately, by the status call of its gRPC server, since a
session's list of devices would wait for all workers. A worker's answer lists its
devices and the devices' incarnations, numbers that no other process has.
"""

import itertools
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

import grpc

_STATUS = "/tensorflow.WorkerService/GetStatus"
_KEEP_ALIVE = "/tensorflow.eager.EagerService/KeepAlive"
_CLOSE_CONTEXT = "/tensorflow.eager.EagerService/CloseContext"
# Without a session, the server asks all other workers for their devices.
_LIST_DEVICES = "/tensorflow.MasterService/ListDevices"
_CONTEXT_ID = b"\x09"  # Tag of the first field, 8 bytes, of both calls' messages.
_OPTIONS = [
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),
    # A worker that comes up must be seen within a second.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
]
# If answers take this many seconds more than their limit, this process was stopped.
_MAX_DELAY = 1.0
# Seconds before a worker that is gone is asked again: its machine may have been busy.
_RETRY_SECONDS = 1.0
# Seconds in which a killed process may still accept connections.
_HANG_UP_SECONDS = 2.0
# Seconds in which a worker that is up answers.
_ANSWER_SECONDS = 5.0


class Answer(NamedTuple):
    """A worker's answer to a status call. Without an answer, `identity` is None."""

    identity: bytes | None = None  # Constant as long as the process lives.
    is_gone: bool = False  # There is no such process.


class WorkerQuestions:
    """gRPC calls to all workers' servers. A call waits for at most `seconds`."""

    def __init__(self, addresses: Sequence[str]) -> None:
        channels = [grpc.insecure_channel(address, _OPTIONS) for address in addresses]
        self._calls = {
            name: [channel.unary_unary(name, bytes, bytes) for channel in channels]
            for name in (_STATUS, _KEEP_ALIVE, _CLOSE_CONTEXT, _LIST_DEVICES)
        }

    def only(self, tasks: Sequence[int]) -> "WorkerQuestions":
        """Returns the questions to some of the workers, over the same channels."""
        questions = WorkerQuestions([])
        questions._calls = {
            name: [calls[task] for task in tasks] for name, calls in self._calls.items()
        }
        return questions

    def ask(self, seconds: float) -> Sequence[Answer]:
        begin = time.monotonic()
        answers = [_answer(call) for call in self._send(_STATUS, seconds)]
        if time.monotonic() - begin < seconds + _MAX_DELAY:
            return answers
        # This process or its machine was stopped, so workers were not asked in time.
        return self.ask(seconds)

    def forgotten(self, client: int, seconds: float) -> Sequence[bool]:
        """Returns whether each worker answers but no longer knows the client."""
        sent = self._send(_KEEP_ALIVE, seconds, client)
        return [call.code() == grpc.StatusCode.ABORTED for call in sent]

    def cut_off(self, tasks: Sequence[int], seconds: float) -> list[int]:
        """Returns which workers in `tasks` cannot reach all other workers."""
        calls = self._calls[_LIST_DEVICES]
        sent = {task: calls[task].future(b"", timeout=seconds) for task in tasks}
        late = grpc.StatusCode.DEADLINE_EXCEEDED
        return [task for task, answer in sent.items() if answer.code() == late]

    def forget(self, client: int, seconds: float) -> None:
        """Asks all workers to free the objects of a lost client."""
        for call in self._send(_CLOSE_CONTEXT, seconds, client):
            call.code()  # Waits for the answer.

    def _send(
        self, name: str, seconds: float, client: int | None = None
    ) -> list[grpc.Future]:
        message = b"" if client is None else _CONTEXT_ID + client.to_bytes(8, "little")
        return [call.future(message, timeout=seconds) for call in self._calls[name]]


def _answer(sent: grpc.Future) -> Answer:
    try:
        return Answer(sent.result())
    except grpc.RpcError as error:
        return Answer(is_gone=error.code() == grpc.StatusCode.UNAVAILABLE)


class LostWorkers:
    """A search for workers that are gone, have restarted or do not answer in time.

    It searches among all workers, until `leave_out` names some that the job does not
    use.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        questions: WorkerQuestions,
        timeout: float,
        client: Callable[[], int | None],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._names = [f"worker:{i} at {a}" for i, a in enumerate(addresses)]
        self._questions, self._timeout, self._sleep = questions, timeout, sleep
        self.client = client
        self._known: Sequence[bytes | None] = [None] * len(self._names)
        self._turns = itertools.cycle(range(len(self._names)))
        self._used, self._used_questions = list(range(len(self._names))), questions
        self.left_out: frozenset[int] = frozenset()

    def absent(self) -> dict[int, str]:
        """Returns the names of the workers that do not answer within some seconds.

        If all workers answer, returns texts about workers that cannot reach another
        worker. Remembers each worker's identity, to notice restarts later. The keys are
        the workers' numbers.
        """
        seconds = min(self._timeout, _ANSWER_SECONDS)
        self._known = [answer.identity for answer in self._questions.ask(seconds)]
        names = dict(enumerate(self._names))
        silent = {i: name for i, name in names.items() if self._known[i] is None}
        return silent or self._cut_off(names, seconds)

    @property
    def all_answered(self) -> bool:
        """True if all workers answered when `absent` was last called."""
        return None not in self._known

    def leave_out(self, tasks: Collection[int]) -> None:
        """Searches only among the other workers from now on.

        Workers that cannot reach another worker are then not found: a worker's answer
        about that would wait for the workers that are left out.
        """
        self.left_out = frozenset(tasks)
        self._used = [i for i in range(len(self._names)) if i not in self.left_out]
        self._used_questions = self._questions.only(self._used)

    def back(self) -> list[str]:
        """Returns the names of the workers that are left out and could be used again.

        If all workers answer, they must also reach each other.
        """
        seconds = min(self._timeout, _ANSWER_SECONDS)
        answers = self._questions.ask(seconds) if self.left_out else []
        back = [i for i in sorted(self.left_out) if answers[i].identity is not None]
        is_complete = all(answer.identity is not None for answer in answers)
        if back and is_complete and self._cut_off(range(len(answers)), seconds):
            return []
        return [self._names[i] for i in back]

    def lost(self) -> list[str]:
        """Returns a sentence for each worker that is lost."""
        answers = self._used_questions.ask(self._timeout)
        if any(answer.is_gone for answer in answers):
            self._sleep(_RETRY_SECONDS)
            answers = self._used_questions.ask(self._timeout)
        known = [self._known[i] for i in self._used]
        changes = list(map(self._change, answers, known))
        if not any(changes):
            changes = self._forgetful()
        pairs = zip(self._used, changes, strict=True)
        lost = [f"{self._names[i]} {change}." for i, change in pairs if change]
        if lost or self.left_out:
            return lost
        # Asks a single worker each time, since it asks all others.
        if self._cut_off([next(self._turns)], self._timeout):
            cut_off = self._cut_off(range(len(self._names)), self._timeout)
            return [f"{x} for {self._timeout:g} seconds." for x in cut_off.values()]
        return []

    def lost_after_failure(self) -> list[str]:
        """Returns a sentence for each lost worker, even one killed just now."""
        if lost := self.lost():
            return lost
        self._sleep(_HANG_UP_SECONDS)
        return self.lost()

    def forget(self, client: int) -> None:
        """Asks all workers to free the objects of a client that is gone."""
        self._used_questions.forget(client, _ANSWER_SECONDS)

    def _cut_off(self, tasks: Iterable[int], seconds: float) -> dict[int, str]:
        """Returns a text for each worker in `tasks` that cannot reach another one."""
        if len(self._names) == 1:
            return {}
        return {
            task: f"{self._names[task]}, which does not reach another worker"
            for task in self._questions.cut_off(list(tasks), seconds)
        }

    def _change(self, answer: Answer, identity: bytes | None) -> str:
        if answer.is_gone:
            return "is gone"
        if answer.identity is None:
            return f"has not answered for {self._timeout:g} seconds"
        return "has restarted" if answer.identity != identity else ""

    def _forgetful(self) -> list[str]:
        """Returns a text for each worker: "" if the worker still knows this process.

        A worker forgets a process that was stopped for a while.
        """
        client = self.client()
        if client is None:
            return [""] * len(self._used)
        forgotten = self._used_questions.forgotten(client, self._timeout)
        return ["has forgotten this process" if x else "" for x in forgotten]
