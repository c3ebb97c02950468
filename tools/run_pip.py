"""Runs pip with the given arguments, and stops when nobody reads its output any more.

Otherwise, after Bazel is killed, pip would go on to write into a folder that the next
run of Bazel clears.
"""

import os
import runpy
import select
import sys
import threading


def _exit_without_reader(pipe: int) -> None:
    poll = select.poll()
    poll.register(pipe, 0)  # without events to wait for, reports the hang-up alone
    poll.poll()
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(
        target=_exit_without_reader, args=[sys.stdout.fileno()], daemon=True
    ).start()
    runpy.run_module("pip", run_name="__main__", alter_sys=True)
