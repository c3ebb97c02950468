"""Asks workers whether they are there, and whether they are who they were.

Each is asked by itself, through the status call of its TensorFlow server: a session's
list of devices would wait for all workers, and a connection is also made to a process
that is stopped. The answer is the worker's devices with their incarnations, numbers
that no other process has. No TensorFlow, which takes seconds to import.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import grpc

_STATUS = "/tensorflow.WorkerService/GetStatus"
_KEEP_ALIVE = "/tensorflow.eager.EagerService/KeepAlive"
_CLOSE_CONTEXT = "/tensorflow.eager.EagerService/CloseContext"
_CONTEXT_ID = b"\x09"  # Before 8 bytes: the first field of both calls' messages.
_OPTIONS = [
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),
    # A worker that comes up is to be seen within a second.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
]
_LONGEST_DELAY = 1.0  # Of an answer's arrival after its time limit, in seconds.


@dataclass(frozen=True)
class Answer:
    """What became of a question.

    Attributes:
        identity: of the process that answered, the same as long as it lives; None: none
            did.
        is_gone: whether there is none that could.
    """

    identity: bytes | None = None
    is_gone: bool = False


class Questions(Protocol):
    """Asks workers; see `WorkerAnswers`."""

    def ask(self, seconds: float) -> Sequence[Answer]:
        """Waits so many seconds at most."""


class WorkerAnswers:
    """Questions to workers.

    Args:
        addresses: of worker 0, 1, ..., each `host:port`.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        channels = [grpc.insecure_channel(address, _OPTIONS) for address in addresses]
        self._status = [each.unary_unary(_STATUS, bytes, bytes) for each in channels]
        self._alive = [each.unary_unary(_KEEP_ALIVE, bytes, bytes) for each in channels]
        self._close = [
            each.unary_unary(_CLOSE_CONTEXT, bytes, bytes) for each in channels
        ]

    def ask(self, seconds: float) -> list[Answer]:
        """Asks all at once, and waits for each so many seconds at most."""
        begin = time.monotonic()
        asked = [call.future(b"", timeout=seconds) for call in self._status]
        answers = [_answer(each) for each in asked]
        if time.monotonic() - begin < seconds + _LONGEST_DELAY:
            return answers
        # This process itself was stopped, or its machine: nobody was asked in time.
        return self.ask(seconds)

    def forgotten(self, client: int, seconds: float) -> list[bool]:
        """Which workers know no longer what a client of theirs has made there.

        Args:
            client: the number by which they know it, as TensorFlow calls a context's.
            seconds: for which to wait for each at most; one that is silent has not
                forgotten.
        """
        asked = [
            call.future(_of_client(client), timeout=seconds) for call in self._alive
        ]
        return [each.code() == grpc.StatusCode.ABORTED for each in asked]

    def forget(self, client: int, seconds: float) -> None:
        """Has workers free what a client of theirs that is gone has made there.

        Args:
            client: as of `forgotten`; nothing happens where it is not known.
            seconds: for which to wait for each at most; one that is silent frees it
                later.
        """
        asked = [
            call.future(_of_client(client), timeout=seconds) for call in self._close
        ]
        for each in asked:
            each.code()  # Waits.


def _of_client(client: int) -> bytes:
    return _CONTEXT_ID + client.to_bytes(8, "little")


def _answer(asked: grpc.Future) -> Answer:
    try:
        return Answer(asked.result())
    except grpc.RpcError as error:
        return Answer(is_gone=error.code() == grpc.StatusCode.UNAVAILABLE)
