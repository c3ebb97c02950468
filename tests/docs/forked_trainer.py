"""Stands for the trainer's program, which takes seconds to import TensorFlow.

Runs the trainer in a fork of the server at FORK_SERVER, and passes SIGTERM on to it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

from tests.support.fork_server import NUMBER_BYTES


def main() -> None:
    """Runs the trainer with this process's arguments; exits as it does."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.environ["FORK_SERVER"])
    request = {
        "arguments": ["-m", "lingvo_pipe.tools.commands", *sys.argv[1:]],
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        "max_bytes": None,
        "network": None,
    }
    socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
    trainer = int(connection.recv(NUMBER_BYTES, socket.MSG_WAITALL))
    signal.signal(signal.SIGTERM, lambda number, frame: os.kill(trainer, number))
    sys.exit(abs(int(connection.recv(NUMBER_BYTES, socket.MSG_WAITALL))))


if __name__ == "__main__":
    main()
