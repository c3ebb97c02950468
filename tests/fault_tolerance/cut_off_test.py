"""Workers that don't reach each other, though the trainer reaches both, are named."""

from __future__ import annotations

import pytest

from tests.support.network_hosts import cut, network_hosts

_SERVE = """
import sys
from lingvo_pipe.pipeline.devices.cluster_spec import Cluster
from lingvo_pipe.pipeline.devices.worker import serve

*workers, task = sys.argv[1:]
serve(Cluster(tuple(workers)), int(task))
"""
# Prints a line about the workers for each line that it reads. The third one is missing.
_WATCH = """
import sys, time
from lingvo_pipe.fault_tolerance.worker_status import LostWorkers, WorkerQuestions

workers = LostWorkers(sys.argv[1:], WorkerQuestions(sys.argv[1:]), 3.0, lambda: None)
end = time.monotonic() + 120.0

def pairs():
    while list(workers.silent()) != [2] and time.monotonic() < end:
        time.sleep(0.2)
    return workers.cut_pairs([0, 1])

def back():
    return [i for i, why in workers.back().items() if not why]

print(pairs(), flush=True)
workers.leave_out([2])
print(workers.lost(), flush=True)
input()
print(workers.lost(), pairs(), flush=True)
workers.leave_out([1, 2])
print(back(), workers.lost(), flush=True)
input()
while not back() and time.monotonic() < end:
    time.sleep(0.2)
print(back(), workers.lost(), flush=True)
workers.leave_out([2])
print(workers.lost(), flush=True)
"""


@pytest.mark.exhaustive
def test_a_cut_between_two_workers_is_noticed_while_a_third_is_missing() -> None:
    """The trainer is on the first host."""
    with network_hosts() as hosts:
        trainer, *others = hosts
        addresses = [f"{host.ip}:2222" for host in others]
        workers = [
            host.start("-c", _SERVE, *addresses, str(task))
            for task, host in enumerate(others)
        ]
        watch = trainer.start("-c", _WATCH, *addresses, f"{trainer.ip}:2222")
        try:
            assert watch.stdout is not None
            assert watch.stdin is not None
            lines = iter(watch.stdout.readline, "")
            assert [next(lines), next(lines)] == ["[]\n", "[]\n"]
            cut(hosts)
            print(file=watch.stdin, flush=True)
            line = next(lines)
            for task, address in enumerate(addresses):
                assert line.count(f"worker:{task} at {address}") == 1
            assert line.endswith("[(0, 1), (1, 0)]\n")
            assert next(lines) == "[] []\n"
            cut(hosts, is_cut=False)
            print(file=watch.stdin, flush=True)
            assert [next(lines), next(lines)] == ["[1] []\n", "[]\n"]
        finally:
            for process in (watch, *workers):
                process.kill()
                process.communicate()
