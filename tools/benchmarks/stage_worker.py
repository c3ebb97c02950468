"""Lends a core to a pipeline of another process, until standard input ends.

    python -m tools.benchmarks.stage_worker CORE TASK ADDRESS...

runs worker TASK of those at ADDRESS..., as the trainer does with --job=worker; the
first line it writes says that it runs.
"""

from __future__ import annotations

import os
import sys
import threading

from lingvo_pipe.pipeline.devices.cluster_spec import Cluster
from lingvo_pipe.pipeline.devices.worker import serve


def main() -> None:
    """Serves as the arguments say."""
    core, task, *addresses = sys.argv[1:]
    os.sched_setaffinity(0, {int(core)})
    threading.Thread(target=_end_with_standard_input, daemon=True).start()
    serve(Cluster(tuple(addresses)), int(task))


def _end_with_standard_input() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
