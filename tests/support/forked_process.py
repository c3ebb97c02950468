"""Processes that are forks of one that has imported TensorFlow, as `Popen` has them."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from tests.support.fork_server import NUMBER_BYTES

_LOCK = threading.Lock()  # So that several threads start one server.
_SERVER_FILE = Path(__file__).with_name("fork_server.py")


class ForkedProcess:
    """A Python program in a fork of the server's process.

    It has the methods of `subprocess.Popen` that tests use. Standard input is empty.

    Args:
        arguments: Python's, such as `["-m", "lingvo_pipe.trainer", ...]`.
        folder: where it runs.
        environment: its variables.
        output: a file for standard output and error; None: a pipe for each.
        max_bytes: how long a file may become that it writes; None: any length.
        network: the network namespace that it runs in; None: this process's.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        output: Path | None = None,
        max_bytes: int | None = None,
        network: str | None = None,
    ) -> None:
        self.args = list(arguments)
        self.returncode: int | None = None
        self._readers: dict[str, _Reader] = {}
        request = {
            "arguments": self.args,
            "folder": str(folder),
            "environment": dict(environment),
            "max_bytes": max_bytes,
            "network": network,
        }
        self.stdout, self.stderr, theirs = _streams(output)
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(server_path())
        socket.send_fds(self._connection, [json.dumps(request).encode()], theirs)
        for stream in theirs:
            os.close(stream)
        self.pid = int(self._connection.recv(NUMBER_BYTES, socket.MSG_WAITALL))

    def poll(self) -> int | None:
        """Returns the exit code if the process has ended, negative for a signal."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(timeout=0.001)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end, and returns the exit code."""
        if self.returncode is None:
            self._connection.settimeout(timeout)
            try:
                code = self._connection.recv(NUMBER_BYTES, socket.MSG_WAITALL)
            except TimeoutError:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0) from None
            if not code:
                raise RuntimeError(f"{self.args} went with the server of forks.")
            self.returncode = int(code)
            self._connection.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Returns what is still to be read of standard output and error; waits.

        After a timeout it can be called again, and nothing is lost.
        """
        for name, stream in (("output", self.stdout), ("error", self.stderr)):
            if stream is not None and name not in self._readers:
                self._readers[name] = _Reader(stream)
        self.wait(timeout)
        for reader in self._readers.values():
            reader.join(timeout)
        output, error = (self._readers.get(name) for name in ("output", "error"))
        return output.text if output else "", error.text if error else ""

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless the process is known to have ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # It has just ended.
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> ForkedProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()
        self.communicate()


class _Reader(threading.Thread):
    """Reads a stream to its end, and closes it."""

    def __init__(self, stream: IO[str]) -> None:
        super().__init__(daemon=True)
        self._stream = stream
        self.text = ""
        self.start()

    def run(self) -> None:
        """Reads; called by the thread."""
        with self._stream:
            self.text = self._stream.read()


def _streams(output: Path | None) -> tuple[IO[str] | None, IO[str] | None, list[int]]:
    """Returns our ends of standard output and error, and all three of the program."""
    empty = os.open(os.devnull, os.O_RDONLY)
    if output is not None:
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        return None, None, [empty, file, os.dup(file)]
    (ours, theirs), (our_errors, their_errors) = os.pipe(), os.pipe()
    return os.fdopen(ours), os.fdopen(our_errors), [empty, theirs, their_errors]


def server_path() -> str:
    """Returns the path of the server's socket; starts the server if need be."""
    with _LOCK:
        path, _ = _server()
    return path


@functools.cache
def _server() -> tuple[str, subprocess.Popen[str]]:
    """Starts the server, and returns the path of its socket and the process.

    It ends when its standard input is closed, with this process at the latest. Its
    programs share a folder of data sets, whatever their environment says: TensorFlow
    Datasets reads that when it is imported.
    """
    folder = tempfile.mkdtemp(prefix="forks")  # A socket's path must be short.
    path = os.path.join(folder, "socket")
    root = str(_SERVER_FILE.parents[2])
    server = subprocess.Popen(
        [sys.executable, str(_SERVER_FILE), path],
        env=os.environ
        | {
            "CUDA_VISIBLE_DEVICES": "-1",
            "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]),
            "TFDS_DATA_DIR": os.path.join(folder, "data_sets"),
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    if server.stdout.readline() != "ready\n":
        raise RuntimeError("The server of forks did not start; see standard error.")
    atexit.register(_end_server, server)
    return path, server


def _end_server(server: subprocess.Popen[str]) -> None:
    """Waits for the server, whose CPU time then counts as this process's."""
    assert server.stdin is not None
    server.stdin.close()
    server.wait()
