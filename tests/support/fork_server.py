"""Runs Python programs as forks of one process, which has imported TensorFlow once.

Listens at the Unix socket whose path is the argument, until standard input is closed;
then removes the folder that the socket is in.
A connection stands for a program, which is killed if the client closes it early:

    client  {"arguments": [...], "folder": ..., "environment": {...}, "max_bytes": ...,
            "network": ...} with standard input, output and error as file descriptors
    server  the process's number, and when it has ended its exit code, as text of
            NUMBER_BYTES bytes each

`arguments` are Python's own: `-m MODULE ...`, `-c CODE ...` or `FILE ...`. `max_bytes`
bounds the length of files that the program writes, or is null. `network` is the name of
the network namespace that the program runs in, or null.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import json
import os
import resource
import runpy
import select
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from typing import Any

NUMBER_BYTES = 12
_MAX_REQUEST = 1 << 20
_CLONE_NEWNET = 0x40000000  # From setns(2).


def _serve(path: str) -> None:
    """Accepts connections, and gives each a process that looks after its program."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    print("ready", flush=True)
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        _wait_for_ended()
        if sys.stdin in ready:
            shutil.rmtree(os.path.dirname(path))  # Made for this server.
            os._exit(0)
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _look_after(connection)
            return  # Only a program comes here.
        connection.close()


def _wait_for_ended() -> None:
    """Counts the CPU time of children that have ended as this process's."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def _look_after(connection: socket.socket) -> None:
    """Starts the program that a client asks for; returns in the program's process."""
    message, streams, _, _ = socket.recv_fds(connection, _MAX_REQUEST, 3)
    request = json.loads(message)
    pid = os.fork()
    if pid == 0:
        connection.close()
        _become(request, streams)
        return
    for stream in streams:
        os.close(stream)
    connection.sendall(f"{pid:{NUMBER_BYTES}}".encode())
    ended = os.pidfd_open(pid)
    ready, _, _ = select.select([ended, connection.fileno()], [], [])
    if ended not in ready:  # The client has gone, and its program goes with it.
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    with contextlib.suppress(BrokenPipeError):
        connection.sendall(f"{code:{NUMBER_BYTES}}".encode())
    os._exit(0)


def _become(request: dict[str, Any], streams: Sequence[int]) -> None:
    """Runs a program in this process, as the interpreter does when it is started."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    if request["max_bytes"] is not None:
        limit = request["max_bytes"]
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    if request["network"] is not None:
        _enter_network(request["network"])
    sys.stdin = open(0)  # noqa: SIM115  This process's own, with nothing read yet.
    arguments = request["arguments"]
    sys.orig_argv = [sys.executable, *arguments]
    sys.path[0] = request["folder"]
    kind, *rest = arguments
    if kind == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = arguments[:1] + rest[1:]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = arguments
        sys.path[0] = os.path.dirname(os.path.abspath(kind))
        runpy.run_path(kind, run_name="__main__")


def _enter_network(name: str) -> None:
    """Moves this process into a network namespace. Needs root's rights."""
    with open(f"/run/netns/{name}") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"no way into the network {name}")


def _end(code: int) -> None:
    """Ends a program as the interpreter does, but leaves its modules in memory.

    To clear them would copy the server's memory, which takes far longer than most
    programs. Returns if the interpreter has an error to show.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def _run(path: str) -> None:
    """Serves, and in the process of a program runs and ends it."""
    try:
        _serve(path)
    except SystemExit as exit:
        if exit.code is None or isinstance(exit.code, int):
            _end(exit.code or 0)
        raise
    _end(0)


if __name__ == "__main__":
    # As the trainer has it, but from the start, for TensorFlow reads it only once.
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    import lingvo_pipe.cli.train_job
    import lingvo_pipe.cli.use_jobs  # noqa: F401
    import model_registry

    model_registry.ImportAll()
    gc.freeze()  # What is there now is in every program, and no garbage.
    _run(sys.argv[1])
