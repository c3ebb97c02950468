"""An elastic run ends in the same bytes as an undisturbed one."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from lingvo_pipe.training.run.run_parts import disturbances, read_parts
from tests.local_cluster.elastic_runs import ElasticRuns

STEPS, LONG = 150, 1500


def test_a_run_that_loses_a_worker_goes_on_without_it(tmp_path: Path) -> None:
    runs = ElasticRuns(tmp_path, STEPS)
    run = runs.start("elastic", 2, "--devices=2")
    try:
        run.wait_for_devices([0, 1])
        run.disturb(1, signal.SIGKILL)
        run.wait_for_devices([0])
        output = run.finish()
    finally:
        run.end()
    assert re.search(r"^elastic: 1 of 2 devices; left out: worker:1$", output, re.M)
    runs.train("whole", "--devices=2")
    assert runs.results("elastic") == runs.results("whole")


@pytest.mark.exhaustive
def test_a_run_shrinks_from_four_devices_to_one_and_grows_back(tmp_path: Path) -> None:
    runs = ElasticRuns(tmp_path, LONG)
    run = runs.start("elastic", 4)
    try:
        run.wait_for_devices([0, 1, 2, 3])
        run.disturb(1, signal.SIGKILL)
        run.wait_for_devices([0, 2, 3])
        run.disturb(3, signal.SIGSTOP)
        run.wait_for_devices([0, 2])
        run.disturb(0, signal.SIGKILL)
        run.wait_for_devices([2])
        for task in (0, 1, 3):
            run.start_worker(task)
        run.wait_for_devices([0, 1, 2, 3])
        run.finish()
    finally:
        run.end()
    runs.train("whole", "--devices=2")
    assert runs.results("elastic") == runs.results("whole")
    parts = read_parts(tmp_path / "elastic" / "parts.json")
    causes = [part.cause for part in parts]
    assert causes[0] == ""
    assert re.search(r"^worker:1 at \S+ is gone\.$", causes[1])
    assert all("lost" in line for line in disturbances(parts))
    print(*disturbances(parts), sep="\n")
