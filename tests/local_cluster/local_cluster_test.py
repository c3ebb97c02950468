"""A run whose workers and trainer are killed and stopped ends like any other."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lingvo_pipe.cli.error_output import STOPPED_CODE
from tests.local_cluster.disturbed_run import Fault, RunningCluster
from tests.support.cases import exhaustive
from tests.support.command_line import (
    SMALL,
    CommandLine,
    saved_variables,
    write_small_model,
)

SEED = 4
FLAGS = (
    SMALL,
    "--model_params_override=task.train.report_interval_steps : 1; "
    "task.train.save_interval_steps : 5; task.eval.interval_steps : 70",
)

# Short, to keep the test short; a busy machine answers within it, too.
TIMEOUT = "--worker_timeout_seconds=5"
PATIENCE = 300.0  # Seconds, on a busy machine.
MEMBERS = ("worker:0", "worker:1", "trainer")
SIGNALS = (signal.SIGKILL, signal.SIGSTOP)


def one_by_one(chance: random.Random) -> list[Fault]:
    """Returns a fault of a worker, and one of the trainer."""
    return [
        Fault(signal.SIGSTOP, chance.choice(MEMBERS[:2])),
        Fault(signal.SIGKILL, "trainer"),
    ]


def faults_at_once(chance: random.Random) -> list[Fault]:
    """Returns a fault of a worker and of the trainer while the cluster recovers."""
    return [
        Fault(signal.SIGSTOP, "worker:0"),
        Fault(signal.SIGKILL, "trainer", is_early=True),
    ]


def ten_faults(chance: random.Random) -> list[Fault]:
    """Returns each fault for each process, and four more while the cluster recovers."""
    each = [Fault(s, member) for s in SIGNALS for member in MEMBERS]
    chance.shuffle(each)
    early = [Fault(s, chance.choice(MEMBERS), is_early=True) for s in SIGNALS * 2]
    for fault in early:
        each.insert(chance.randrange(1, len(each) + 1), fault)
    return each


class Clusters:
    """Local clusters in a folder, ended with it."""

    def __init__(self, folder: Path) -> None:
        write_small_model(folder)
        self.command_line = CommandLine(folder)
        self._processes: list[subprocess.Popen[str]] = []

    def start(self, *flags: str) -> RunningCluster:
        """Starts a cluster of two workers."""
        program = ("-m", "lingvo_pipe.tools.local_cluster.local_cluster", "--workers=2")
        self._processes.append(self.command_line.start_fresh(*program, *flags))
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
    end = time.monotonic() + PATIENCE
    while any(map(is_alive, pids)):
        assert time.monotonic() < end, pids
        time.sleep(0.05)


@pytest.mark.exhaustive
def test_a_signal_ends_it_after_a_step(clusters: Clusters, tmp_path: Path) -> None:
    """Without restarts, since it is no fault, and with the trainer's exit code."""
    cluster = clusters.start(*FLAGS, f"--logdir={tmp_path}", "--max_steps=9000")
    cluster.wait_until(cluster.trains)
    cluster.process.send_signal(signal.SIGTERM)
    assert cluster.wait() == STOPPED_CODE, cluster.output
    assert re.search(r"^trainer \| .*\bSIGTERM\b.*\d", cluster.output, re.M)
    assert len(cluster.pids()) == len(MEMBERS)
    wait_until_dead(cluster.pids())


@pytest.mark.parametrize(
    ("faults", "steps"),
    [
        exhaustive(one_by_one, 80),
        exhaustive(faults_at_once, 80),
        exhaustive(ten_faults, 500),
    ],
)
def test_faults_leave_no_trace(
    clusters: Clusters,
    tmp_path: Path,
    faults: Callable[[random.Random], list[Fault]],
    steps: int,
) -> None:
    for_steps = (*FLAGS, f"--max_steps={steps}")
    flags = (*for_steps, TIMEOUT, f"--logdir={tmp_path / 'disturbed'}", "--traceback")
    chance = random.Random(SEED)
    cluster = clusters.start(*flags)
    injected = faults(chance)
    print(f"seed {SEED}:", *cluster.disturb(injected, chance), sep="\n  ")
    assert cluster.wait() == 0, cluster.output
    killed = re.findall(r"^local_cluster: \S+ .*\b5 s", cluster.output, re.M)
    late = [fault for fault in injected if not fault.is_early]
    hung = [fault for fault in late if fault.signal is signal.SIGSTOP]
    assert len(killed) >= len(hung) > 0, cluster.output
    wait_until_dead(cluster.pids())

    whole = tmp_path / "whole"
    clusters.command_line.train(*for_steps, "--devices=2", f"--logdir={whole}")
    ours = saved_variables(tmp_path / "disturbed", steps)
    assert ours == saved_variables(whole, steps)
    runs = tmp_path / "disturbed", whole
    texts = [(run / "metrics.jsonl").read_text() for run in runs]
    assert texts[0] == texts[1]


@pytest.mark.exhaustive
def test_a_users_error_ends_the_cluster(clusters: Clusters, tmp_path: Path) -> None:
    cluster = clusters.start("--model=mine.small_model.Smal", f"--logdir={tmp_path}")
    assert cluster.wait() == 1
    assert "trainer | error: " in cluster.output
    assert re.search(r"^local_cluster: .*\btrainer\b.*\b1\b", cluster.output, re.M)
    assert len(cluster.pids()) == len(MEMBERS)  # No restarts.
    wait_until_dead(cluster.pids())


def test_nothing_outlives_it(clusters: Clusters, tmp_path: Path) -> None:
    """Even if it was killed, and could end nothing itself."""
    cluster = clusters.start(SMALL, f"--logdir={tmp_path}")
    cluster.wait_until(lambda: len(cluster.pids()) == len(MEMBERS))
    assert all(map(is_alive, cluster.pids()))
    cluster.process.kill()
    wait_until_dead(cluster.pids())


def test_flags_of_clusters_are_refused(clusters: Clusters) -> None:
    cluster = clusters.start("--cluster=worker=a:1", "--task=1", SMALL)
    assert cluster.wait() == 1
    assert re.search(r"^error: .*--cluster\b.*--task\b", cluster.output, re.M)
    assert not cluster.pids()
