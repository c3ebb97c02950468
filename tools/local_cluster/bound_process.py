"""Starts a program that ends when the process that started it does, however that ends.

    python -m tools.local_cluster.bound_process PARENT CORES PROGRAM ARGUMENT...

PARENT is the process id of who starts it, CORES are numbers with commas between, or
empty for all. The system kills the program when its parent is no more, even if the
parent was killed itself; only this process can ask for that, before it becomes the
program.
"""

from __future__ import annotations

import os
import signal
import sys

from lingvo_pipe.failures.death_signal import set_death_signal


def main(parent: str, cores: str, *command: str) -> None:
    """Binds this process to its parent and cores, and has it become the program."""
    set_death_signal(signal.SIGKILL)
    if os.getppid() != int(parent):  # It has ended before it could be bound to it.
        sys.exit(f"Process {parent} has ended.")
    if cores:
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    os.execv(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
