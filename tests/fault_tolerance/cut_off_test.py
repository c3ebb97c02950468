"""Workers that don't reach each other, though the trainer reaches both, are named."""

from __future__ import annotations

import pytest

from tests.support.network_hosts import cut, three_hosts

_SERVE = """
import sys
from lingvo_pipe.pipeline.devices.cluster_spec import Cluster
from lingvo_pipe.pipeline.devices.worker import serve

*workers, task = sys.argv[1:]
serve(Cluster(tuple(workers)), int(task))
"""
# Prints a line about the workers for each line that it reads.
_WATCH = """
import sys, time
from lingvo_pipe.fault_tolerance.worker_status import LostWorkers, WorkerQuestions

workers = LostWorkers(sys.argv[1:], WorkerQuestions(sys.argv[1:]), 3.0, lambda: None)
end = time.monotonic() + 60.0
while workers.absent() and time.monotonic() < end:
    time.sleep(0.2)
print(list(workers.absent().values()), workers.lost(), flush=True)
input()
print(workers.lost(), list(workers.absent().values()), flush=True)
input()
while workers.absent() and time.monotonic() < end:
    time.sleep(0.2)
print(list(workers.absent().values()), workers.lost(), flush=True)
"""


@pytest.mark.exhaustive
def test_a_cut_between_two_workers_is_noticed_and_its_end_too() -> None:
    """The trainer is on the first host."""
    with three_hosts() as hosts:
        trainer, *others = hosts
        addresses = [f"{host.ip}:2222" for host in others]
        workers = [
            host.start("-c", _SERVE, *addresses, str(task))
            for task, host in enumerate(others)
        ]
        watch = trainer.start("-c", _WATCH, *addresses)
        try:
            assert watch.stdout is not None
            assert watch.stdin is not None
            assert watch.stdout.readline() == "[] []\n"
            cut(hosts)
            print(file=watch.stdin, flush=True)
            line = watch.stdout.readline()
            for task, address in enumerate(addresses):
                assert line.count(f"worker:{task} at {address}") == 2
            cut(hosts, is_cut=False)
            print(file=watch.stdin, flush=True)
            assert watch.stdout.readline() == "[] []\n"
        finally:
            for process in (watch, *workers):
                process.kill()
                process.communicate()
