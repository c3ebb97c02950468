"""A search for lost workers: gone, restarted, silent, or cut off from other workers.

Each worker is asked separately, by the status call of its gRPC server, since a
session's list of devices would wait for all workers. A worker's answer lists its
devices and the devices' incarnations, numbers that no other process has.
"""

import itertools
import time
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage

_STATUS = "/tensorflow.WorkerService/GetStatus"
_KEEP_ALIVE = "/tensorflow.eager.EagerService/KeepAlive"
_CLOSE_CONTEXT = "/tensorflow.eager.EagerService/CloseContext"
# The server asks the workers in the session's device filters for their devices.
_CREATE_SESSION = "/tensorflow.MasterService/CreateSession"
_CLOSE_SESSION = "/tensorflow.MasterService/CloseSession"
_CONTEXT_ID = b"\x09"  # Tag of the first field, 8 bytes, of both calls' messages.
_DEVICE_FILTER = b"\x22"  # Tag of the fourth field, strings, of a session's config.
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
            for name in (
                _STATUS,
                _KEEP_ALIVE,
                _CLOSE_CONTEXT,
                _CREATE_SESSION,
                _CLOSE_SESSION,
            )
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

    def reach(
        self, probes: Sequence[tuple[int, Collection[int]]], seconds: float
    ) -> list[bool]:
        """Returns for each (worker, others) whether it reaches all others in time."""
        sent = [
            self._calls[_CREATE_SESSION][task].future(
                _session_with(others), timeout=seconds
            )
            for task, others in probes
        ]
        late = grpc.StatusCode.DEADLINE_EXCEEDED
        reached = [answer.code() != late for answer in sent]
        # The answer is the session's handle, which is also the message to close it.
        closed = [
            self._calls[_CLOSE_SESSION][task].future(answer.result(), timeout=seconds)
            for (task, _), answer in zip(probes, sent, strict=True)
            if answer.code() == grpc.StatusCode.OK
        ]
        for call in closed:
            call.code()  # Waits for the answer.
        return reached

    def forget(self, client: int, seconds: float) -> None:
        """Asks all workers to free the objects of a lost client."""
        for call in self._send(_CLOSE_CONTEXT, seconds, client):
            call.code()  # Waits for the answer.

    def _send(
        self, name: str, seconds: float, client: int | None = None
    ) -> list[grpc.Future]:
        message = b"" if client is None else _CONTEXT_ID + client.to_bytes(8, "little")
        return [call.future(message, timeout=seconds) for call in self._calls[name]]


def _session_with(tasks: Collection[int]) -> bytes:
    """Returns a CreateSessionRequest, whose second field is the session's config."""
    filters = [f"/job:worker/task:{task}".encode() for task in tasks]
    config = b"".join(_DEVICE_FILTER + bytes([len(x)]) + x for x in filters)
    # The second field of an `Any` holds bytes, too.
    message: bytes = AnyMessage(value=config).SerializeToString()
    return message


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
        self._turns = itertools.count()
        self.used, self._used_questions = list(range(len(self._names))), questions
        self.left_out: frozenset[int] = frozenset()
        # The worker that `lost` named last, if it has ended, and no other was lost. A
        # network rather loses several workers at once, or leaves them silent.
        self.ended_alone: Sequence[int] = ()

    def absent(self) -> dict[int, str]:
        """Returns the names of the workers that do not answer within some seconds.

        If all workers answer, returns texts about workers that cannot reach another
        worker. The keys are the workers' numbers.
        """
        return self.silent() or self._cut_off(self.used, self._seconds)

    def silent(self) -> dict[int, str]:
        """Returns the names of workers that do not answer. Remembers all identities."""
        self._known = [answer.identity for answer in self._questions.ask(self._seconds)]
        names = enumerate(self._names)
        return {i: name for i, name in names if self._known[i] is None}

    @property
    def answering(self) -> list[int]:
        """The workers that answered when `silent` was last called."""
        identities = enumerate(self._known)
        return [task for task, identity in identities if identity is not None]

    def name(self, task: int) -> str:
        """Returns a worker's name, with its address."""
        return self._names[task]

    def cut_pairs(self, tasks: Sequence[int]) -> list[tuple[int, int]]:
        """Returns pairs (a, b) of answering workers where a cannot reach b."""
        cut_off = self._isolated(tasks, tasks, self._seconds)
        pairs = [(i, j) for i in cut_off for j in tasks if i != j]
        reached = self._questions.reach([(i, [j]) for i, j in pairs], self._seconds)
        return [pair for pair, is_up in zip(pairs, reached, strict=True) if not is_up]

    def leave_out(self, tasks: Collection[int]) -> None:
        """Searches only among the other workers from now on."""
        self.left_out = frozenset(tasks)
        self.used = [i for i in range(len(self._names)) if i not in self.left_out]
        self._used_questions = self._questions.only(self.used)

    def back(self, skipped: Collection[int] = ()) -> dict[int, str]:
        """Returns the workers that are left out, and answer, except the skipped ones.

        The value is "", or a phrase if a worker and a used one do not reach each other.
        """
        answers = self._questions.ask(self._seconds) if self.left_out else []
        tasks = sorted(self.left_out.difference(skipped))
        back = [task for task in tasks if answers[task].identity is not None]
        return {task: self._unreached(task) for task in back}

    def lost(self) -> list[str]:
        """Returns a sentence for each worker that is lost."""
        answers = self._used_questions.ask(self._timeout)
        if any(answer.is_gone for answer in answers):
            self._sleep(_RETRY_SECONDS)
            answers = self._used_questions.ask(self._timeout)
        identities = [self._known[i] for i in self.used]
        changes = list(map(self._change, answers, identities))
        changed = zip(self.used, changes, strict=True)
        lost_tasks = [task for task, change in changed if change]
        is_one = len(lost_tasks) == 1 and Answer() not in answers
        self.ended_alone = lost_tasks if is_one else []
        if not any(changes):
            changes = self._forgetful()
        pairs = zip(self.used, changes, strict=True)
        lost = [f"{self._names[i]} {change}." for i, change in pairs if change]
        if lost:
            return lost
        # Probes one worker per call, in turn, since a probed worker asks all others.
        turn = next(self._turns) % max(len(self.used), 1)
        if self._cut_off(self.used[turn : turn + 1], self._timeout):
            cut_off = self._cut_off(self.used, self._timeout)
            return [f"{x} for {self._timeout:g} seconds." for x in cut_off.values()]
        return []

    def lost_after_failure(self) -> list[str]:
        """Returns a sentence for each lost worker, even one killed just now."""
        if lost := self.lost():
            return lost
        self._sleep(_HANG_UP_SECONDS)
        return self.lost()

    def forget(self, client: int) -> None:
        """Asks the used workers to free the objects of a client that is gone."""
        self._used_questions.forget(client, _ANSWER_SECONDS)

    @property
    def _seconds(self) -> float:
        return min(self._timeout, _ANSWER_SECONDS)

    def _cut_off(self, tasks: Sequence[int], seconds: float) -> dict[int, str]:
        return {
            task: f"{self._names[task]}, which does not reach another worker"
            for task in self._isolated(tasks, self.used, seconds)
        }

    def _unreached(self, task: int) -> str:
        pairs = [x for x in self.cut_pairs([*self.used, task]) if task in x]
        others = sorted({*itertools.chain(*pairs)} - {task})
        names = ", ".join(f"worker:{i}" for i in others)
        return names and f"it and {names} do not reach each other"

    def _isolated(
        self, tasks: Sequence[int], among: Sequence[int], seconds: float
    ) -> list[int]:
        """Returns the workers in `tasks` that do not reach all others in `among`."""
        if len(among) <= 1:
            return []
        probes = [(task, [x for x in among if x != task]) for task in tasks]
        reached = self._questions.reach(probes, seconds)
        return [task for task, is_up in zip(tasks, reached, strict=True) if not is_up]

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
            return [""] * len(self.used)
        forgotten = self._used_questions.forgotten(client, self._timeout)
        return ["has forgotten this process" if x else "" for x in forgotten]
