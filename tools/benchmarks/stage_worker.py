"""Runs a worker for a stage on one core, until standard input ends.

    python -m tools.benchmarks.stage_worker CORE TASK ADDRESS...

Runs worker TASK of the workers at ADDRESS..., like the trainer with --job=worker. Its
first line shows that it is running.
"""

from __future__ import annotations

import os
import sys
import threading

from lingvo_pipe.pipeline.devices.cluster_spec import Cluster
from lingvo_pipe.pipeline.devices.worker import serve


def main() -> None:
    """Serves with the core, task and addresses of the arguments."""
    core, task, *addresses = sys.argv[1:]
    os.sched_setaffinity(0, {int(core)})
    threading.Thread(target=_end_with_standard_input, daemon=True).start()
    serve(Cluster(tuple(addresses)), int(task))


def _end_with_standard_input() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
