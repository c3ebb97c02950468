"""A run whose stages are on workers is one that has them at home."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import Popen

import pytest

from lingvo_pipe.pipeline.devices.own_port import unused_ports
from tests.trainer.command_line import CommandLine, saved_variables

STEPS = 3
DEVICES = "--devices=worker:0/cpu:0,worker:1/cpu:0"
OFTEN = "--model_params_override=task.train.save_interval_steps : 1"
MODEL = "--model=mine.small.Small"
CODE = """
import model_registry
from lingvo_pipe.input.image_input import ImageClassificationInput
from lingvo_pipe.layers.convolution import Conv2DLayer
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.pooling import GlobalAveragePoolingLayer
from lingvo_pipe.models.image_classifier import ImageClassifier
from lingvo_pipe.training.keras_optimizer import OptimizerParams
from lingvo_pipe.training.single_task_model_params import SingleTaskModelParams


@model_registry.RegisterSingleTaskModel
class Small(SingleTaskModelParams):
    def Train(self):
        return ImageClassificationInput.Params().Set(batch_size=16, pixel_max=16)

    def Test(self):
        return self.Train().Set(split="test")

    def Task(self):
        p = ImageClassifier.Params()
        p.pipeline.Set(
            cell_tpl=[
                Conv2DLayer.Params().Set(filter_shape=[3, 3, 1, 8], bias=True),
                GlobalAveragePoolingLayer.Params(),
                FCLayer.Params().Set(input_dim=8, output_dim=10),
            ],
            splits=2,
            num_micro_batches=4,
        )
        p.train.Set(
            learning_rate=0.01, optimizer=OptimizerParams("Adam"), max_steps=3
        )
        return p
"""


class Cluster:
    """Two workers on this machine.

    Attributes:
        flag: what trainers are told.
        addresses: where they are.
        command_line: runs the trainers.
        workers: their processes.
    """

    def __init__(self, folder: Path):
        self.addresses = [f"localhost:{port}" for port in unused_ports(2)]
        self.flag = f"--cluster_spec=worker={','.join(self.addresses)}"
        (folder / "mine").mkdir()
        (folder / "mine" / "small.py").write_text(CODE)
        self.command_line = CommandLine(folder)
        self.workers = [
            self.command_line.start_trainer("--job=worker", f"--task={i}", self.flag)
            for i in range(2)
        ]

    def start_trainer(self, logdir: str, *flags: str) -> Popen[str]:
        """Starts a run on the workers."""
        return self.command_line.start_trainer(
            MODEL, self.flag, DEVICES, f"--logdir={logdir}", *flags
        )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("workers"))
    yield cluster
    for worker in cluster.workers:
        worker.kill()
        worker.communicate()


@pytest.fixture(scope="module")
def folder(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds a run `there`, on the workers, and a run `here`."""
    folder = tmp_path_factory.mktemp("runs")
    here = f"--logdir={folder / 'here'}"
    with ThreadPoolExecutor() as pool:
        local = pool.submit(cluster.command_line.train, MODEL, "--devices=2", here)
        trainer = cluster.start_trainer(str(folder / "there"))
        output, errors = trainer.communicate()
        local.result()
    assert trainer.returncode == 0, errors
    assert "stages: 2 (worker:0/cpu:0, worker:1/cpu:0)" in output
    return folder


def test_workers_say_where_they_are(cluster: Cluster) -> None:
    for i, worker in enumerate(cluster.workers):
        assert worker.stdout is not None
        where = cluster.addresses[i]
        assert worker.stdout.readline() == f"worker:{i} of 2 runs at {where}.\n"


def test_checkpoints_have_the_same_bytes(folder: Path) -> None:
    there = saved_variables(folder / "there", STEPS)
    assert there == saved_variables(folder / "here", STEPS)
    text = (folder / "there" / "metrics.jsonl").read_text()
    assert text == (folder / "here" / "metrics.jsonl").read_text()


def _start_and_save(cluster: Cluster, logdir: Path, *flags: str) -> Popen[str]:
    """Starts a run that has no end; returns when it has saved a checkpoint."""
    long = "--max_steps=90000"
    trainer = cluster.start_trainer(str(logdir), long, OFTEN, *flags)
    while trainer.poll() is None and not list(logdir.glob("checkpoints/*.index")):
        time.sleep(0.05)
    return trainer


def test_who_waits_for_a_stopped_worker_can_be_asked_to_end(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The step that it is in never ends."""
    logdir = tmp_path / "stopped"
    trainer = _start_and_save(cluster, logdir, "--worker_timeout_seconds=3")
    cluster.workers[1].send_signal(signal.SIGSTOP)
    try:
        trainer.send_signal(signal.SIGTERM)
        output, _ = trainer.communicate(timeout=60)
    finally:
        cluster.workers[1].send_signal(signal.SIGCONT)
    assert trainer.returncode == 128 + signal.SIGTERM
    where = cluster.addresses[1]
    assert f"worker:1 at {where} has not answered for 3 seconds.\n" in output
    last = output.splitlines()[-1]
    assert last.startswith("Stopped by SIGTERM. The same command goes on from the la")


def test_a_worker_that_stays_away_ends_the_run_in_one_line(
    folder: Path, cluster: Cluster
) -> None:
    """And the run goes on from its last checkpoint, here without any worker."""
    logdir = folder / "lost"
    trainer = _start_and_save(cluster, logdir, "--wait_for_workers_seconds=3")
    cluster.workers[1].kill()
    output, errors = trainer.communicate(timeout=120)
    assert trainer.returncode == 1
    (line,) = re.findall("^error: .*", errors, re.MULTILINE)
    named = f"worker:1 at {cluster.addresses[1]}"
    assert f"{named} is gone.\nThis process waits for all workers, and goes" in output
    assert f"{named} can't be reached within 3 seconds. " in line
    assert "Traceback" not in errors
    (newest,) = sorted(logdir.glob("checkpoints/*.index"))[-1:]
    step = int(newest.stem.removeprefix("ckpt-"))
    output, _ = cluster.command_line.train(
        MODEL,
        "--devices=2",
        f"--logdir={logdir}",
        f"--max_steps={step + 1}",
        OFTEN,
    )
    assert f"Resumed from step {step}." in output


def test_a_worker_ends_when_asked_to(cluster: Cluster) -> None:
    """By a handler: a container's first process has no default that ends it."""
    (worker, *_) = cluster.workers  # The only one that is still there.
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(timeout=60) == 128 + signal.SIGTERM
