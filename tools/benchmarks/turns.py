"""A worker's side of taking turns: of what is compared, one works at a time.

The worker says when it is ready, by a line, and waits until it is told to go on, by
another; its last line is what it has measured. `process_group` has the other side.
"""

from __future__ import annotations

import os
import sys


class Turns:
    """Speaks for a worker; only one in a process."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
        # What libraries write to standard output is no answer.
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def wait(self) -> None:
        """Returns when it is this worker's turn; ends it if nobody measures now."""
        self.answer("ready")
        if not sys.stdin.readline():
            sys.exit("Who measures has ended.")

    def answer(self, line: str) -> None:
        """Says what a turn has led to."""
        print(line, file=self._answers)
