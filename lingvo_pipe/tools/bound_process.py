"""Runs a program that ends with its parent process, even if the parent is killed.

    python -m lingvo_pipe.tools.bound_process PARENT CORES PROGRAM ARGUMENT...

PARENT is the parent's process id. CORES are comma-separated numbers, or empty for all
cores. The system kills the program when its parent dies. A process can request this
only for itself, so this one requests it, and then executes the program in its place.
"""

import os
import signal
import sys
from collections.abc import Iterable

from lingvo_pipe.fault_tolerance.restarts import set_death_signal


def bound_python(cores: Iterable[int], *arguments: str) -> list[str]:
    """Returns a command that runs Python on `cores` and ends with this process."""
    parent, core_list = str(os.getpid()), ",".join(map(str, cores))
    program = [sys.executable, *arguments]
    return [sys.executable, "-m", __name__, parent, core_list, *program]


def main(parent: str, cores: str, *command: str) -> None:
    """Binds this process to its parent and cores, and replaces it by the command."""
    set_death_signal(signal.SIGKILL)
    if os.getppid() != int(parent):  # It ended before this process was bound to it.
        sys.exit(f"Process {parent} has ended.")
    if cores:
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    os.execv(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
