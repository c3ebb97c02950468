"""Processes that work at the same time: told to by a line each, they answer by one."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

_TIME_LIMIT_SECONDS = 900
_LONGEST_LOG = 4000


class _Member(NamedTuple):
    process: subprocess.Popen[str]
    to: int
    answers: IO[str]
    log: IO[str]


class ProcessGroup:
    """Processes that run, and write one line to begin with and one a turn.

    When one fails, or takes too long, the others are no use.
    """

    def __init__(self, name: str, members: Sequence[_Member]):
        self._name = name
        self._members = members

    @property
    def pids(self) -> list[int]:
        """The processes' ids."""
        return [member.process.pid for member in self._members]

    def turn(self) -> list[str]:
        """Tells all to go on; returns their answers."""
        for member in self._members:
            # Of one that has ended, it is the answer that is missed.
            with contextlib.suppress(BrokenPipeError):
                os.write(member.to, b"\n")
        return self.answers()

    def answers(self) -> list[str]:
        """The next line of each.

        Raises:
            RuntimeError: if one ends without, or the time is over.
        """
        end = time.monotonic() + _TIME_LIMIT_SECONDS
        found: dict[IO[str], str] = {}
        while len(found) < len(self._members):
            missing = [m.answers for m in self._members if m.answers not in found]
            left = max(0.0, end - time.monotonic())
            ready, _, _ = select.select(missing, [], [], left)
            found |= {answers: answers.readline() for answers in ready}
            if not ready or "" in found.values():
                raise self._failure(found)
        return [found[member.answers] for member in self._members]

    def _failure(self, found: Mapping[IO[str], str]) -> RuntimeError:
        logs = []
        for member in self._members:
            if not found.get(member.answers):
                member.log.seek(0)
                logs.append(member.log.read()[-_LONGEST_LOG:])
        return RuntimeError(
            f"Measuring {self._name} failed or took more than {_TIME_LIMIT_SECONDS} "
            "s:\n" + "\n".join(logs)
        )


@contextlib.contextmanager
def process_group(
    name: str,
    commands: Sequence[Sequence[str]],
    environment: Mapping[str, str],
    folder: Path,
) -> Iterator[ProcessGroup]:
    """Runs commands until it is left; the first answers are still to be read.

    Args:
        name: what it is for.
        commands: one for each process.
        environment: the variables of their environment.
        folder: where they start.
    """
    with contextlib.ExitStack() as stack:
        members = [
            stack.enter_context(_running(command, environment, folder))
            for command in commands
        ]
        yield ProcessGroup(name, members)


@contextlib.contextmanager
def _running(
    command: Sequence[str], environment: Mapping[str, str], folder: Path
) -> Iterator[_Member]:
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield _Member(process, process.stdin.fileno(), process.stdout, log)
        finally:
            process.kill()
