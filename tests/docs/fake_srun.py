"""Stands for Slurm's srun: runs all tasks of a job on this machine.

It tells them where they are as srun does, and passes SIGTERM on to all of them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

NODE = "localhost"


def main() -> None:
    """Runs the command that follows the options; exits as its worst task does."""
    command = sys.argv[1:]
    while command[0].startswith("--"):
        del command[0]
    number = int(os.environ["SLURM_NTASKS"])
    step = {
        "SLURM_STEP_NUM_TASKS": str(number),
        "SLURM_STEP_NODELIST": NODE,
        "SLURM_STEP_TASKS_PER_NODE": str(number),
        "SLURMD_NODENAME": NODE,
    }
    tasks = [
        subprocess.Popen(command, env={**os.environ, **step, "SLURM_PROCID": str(rank)})
        for rank in range(number)
    ]

    def pass_on(number: int, frame: object) -> None:
        for task in tasks:
            task.send_signal(number)

    signal.signal(signal.SIGTERM, pass_on)
    sys.exit(max(abs(task.wait()) for task in tasks))


if __name__ == "__main__":
    main()
