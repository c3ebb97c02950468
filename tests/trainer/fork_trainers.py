"""Runs trainers, one after another, and imports TensorFlow only once for all.

Reads a line of JSON for each trainer from standard input: its flags, the file for what
it says, and how long files may become that it writes, in bytes, or null. Writes two
lines for each: the number of its process when it has been started, and its exit code
when it has ended, which is negative if a signal ended it.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import sys

from lingvo_pipe import jobs, trainer

del jobs  # Imported so that the processes which are forked need not.


def _run(flags: list[str], said: str, most_bytes: int | None) -> None:
    """Runs the trainer in this process, which has not used TensorFlow yet."""
    with open(said, "wb") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    if most_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    sys.argv = ["trainer", *flags]
    trainer.run()


if __name__ == "__main__":
    fork = multiprocessing.get_context("fork")
    for line in sys.stdin:
        process = fork.Process(target=_run, args=json.loads(line))
        process.start()
        print(process.pid, flush=True)
        process.join()
        print(process.exitcode, flush=True)
