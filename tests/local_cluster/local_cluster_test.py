"""A run whose workers and trainer are killed and stopped ends as any other."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local_cluster.disturbed_run import Fault, RunningCluster
from tests.trainer.command_line import CommandLine, saved_variables

SEED = 4
STEPS = 1000
MODEL = "--model=mine.small_model.Small"
FLAGS = (
    MODEL,
    f"--max_steps={STEPS}",
    "--model_params_override=task.train.report_interval_steps : 1; "
    "task.train.save_interval_steps : 5; task.eval.interval_steps : 70; "
    "task.eval.pictures : false",
)
# Short, so that the test is. A machine that is busy answers within it, too.
TIMEOUT = "--worker_timeout_seconds=5"
MEMBERS = ("worker:0", "worker:1", "trainer")
SIGNALS = (signal.SIGKILL, signal.SIGSTOP)


def faults(chance: random.Random) -> list[Fault]:
    """Each kind of each process, and four more while the cluster recovers."""
    each = [Fault(s, member) for s in SIGNALS for member in MEMBERS]
    chance.shuffle(each)
    early = [Fault(s, chance.choice(MEMBERS), is_early=True) for s in SIGNALS * 2]
    for fault in early:
        each.insert(chance.randrange(1, len(each) + 1), fault)
    return each


class Clusters:
    """Starts local clusters in a folder, and ends those that still run."""

    def __init__(self, folder: Path) -> None:
        (folder / "mine").mkdir()
        shutil.copy(Path(__file__).with_name("small_model.py"), folder / "mine")
        self.command_line = CommandLine(folder)
        self._processes: list[subprocess.Popen[str]] = []

    def start(self, *flags: str) -> RunningCluster:
        """Starts one of two workers."""
        program = ("-m", "tools.local_cluster.local_cluster", "--workers=2")
        self._processes.append(self.command_line.start(*program, *flags))
        return RunningCluster(self._processes[-1])

    def end(self) -> None:
        """Ends all."""
        for process in self._processes:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    clusters = Clusters(tmp_path_factory.mktemp("clusters"))
    yield clusters
    clusters.end()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until_dead(pids: list[int]) -> None:
    end = time.monotonic() + 20
    while any(map(is_alive, pids)):
        assert time.monotonic() < end, pids
        time.sleep(0.05)


def test_ten_faults_leave_no_trace(clusters: Clusters, tmp_path: Path) -> None:
    """First the run is asked to stop, which is no fault."""
    flags = (*FLAGS, TIMEOUT, f"--logdir={tmp_path / 'disturbed'}", "--traceback")
    cluster = clusters.start(*flags)
    cluster.wait_until(cluster.trains)
    cluster.process.send_signal(signal.SIGTERM)
    assert cluster.wait() == 0, cluster.said
    assert "Stopped by SIGTERM after step " in cluster.said
    assert "starting it again" not in cluster.said
    wait_until_dead(cluster.pids())

    chance = random.Random(SEED)
    cluster = clusters.start(*flags)
    wanted = faults(chance)
    print(f"seed {SEED}:", *cluster.disturb(wanted, chance), sep="\n  ")
    assert len(wanted) == 10
    assert cluster.wait() == 0, cluster.said
    assert cluster.said.count(": killing it.") >= 3, cluster.said
    wait_until_dead(cluster.pids())

    whole = tmp_path / "whole"
    clusters.command_line.train(*FLAGS, "--devices=2", f"--logdir={whole}")
    ours = saved_variables(tmp_path / "disturbed", STEPS)
    assert ours == saved_variables(whole, STEPS)
    runs = tmp_path / "disturbed", whole
    texts = [(run / "metrics.jsonl").read_text() for run in runs]
    assert texts[0] == texts[1]


def test_a_user_s_fault_ends_it(clusters: Clusters, tmp_path: Path) -> None:
    cluster = clusters.start("--model=mine.small_model.Smal", f"--logdir={tmp_path}")
    assert cluster.wait() == 1
    assert "trainer | error: " in cluster.said
    assert "The trainer has ended, with exit code 1." in cluster.said
    assert "starting it again" not in cluster.said
    wait_until_dead(cluster.pids())


def test_nothing_outlives_it(clusters: Clusters, tmp_path: Path) -> None:
    """Though it was killed, and could end nothing itself."""
    cluster = clusters.start(MODEL, f"--logdir={tmp_path}")
    cluster.wait_until(lambda: len(cluster.pids()) == len(MEMBERS))
    assert all(map(is_alive, cluster.pids()))
    cluster.process.kill()
    wait_until_dead(cluster.pids())


def test_flags_of_clusters_are_refused(clusters: Clusters) -> None:
    cluster = clusters.start("--cluster=worker=a:1", "--task=1", MODEL)
    assert cluster.wait() == 1
    assert "so it takes no --cluster and no --task." in cluster.said
    assert not cluster.pids()
