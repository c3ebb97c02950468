"""The batch script on the page about clusters, in a real Slurm, survives kills."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lingvo_pipe.cli.error_output import STOPPED_CODE
from lingvo_pipe.training.checkpoint.checkpoint_files import steps_in
from lingvo_pipe.training.run.run_directory import LOCK_NAME
from tests.docs.pages import page
from tests.support.command_line import (
    ROOT,
    SMALL,
    CommandLine,
    saved_variables,
    write_small_model,
)
from tests.support.one_node_slurm import NUM_TASKS, Slurm, one_node_slurm

(SBATCH,) = re.findall(r"```bash\n(.*?)```", page("clusters"), re.DOTALL)
STEPS = 400
FLAGS = (
    f"--max_steps={STEPS}",
    "--model_params_override=task.train.save_interval_steps : 5; "
    "task.train.report_interval_steps : 5",
)


# What the page adds for a job that goes on without lost tasks.
ELASTIC = ("--elastic", "--lost_worker_seconds=1")
GOES_ON = "--no-kill --kill-on-bad-exit=0"


class Job:
    """The page's script as a job, in a folder with a run. `flags` are added to it."""

    def __init__(
        self, slurm: Slurm, folder: Path, script_text: str = SBATCH, *flags: str
    ):
        write_small_model(folder)
        program = folder / "bin" / "lingvo_pipe"
        program.parent.mkdir()
        program.write_text(
            f'#!/bin/sh\nexec "{sys.executable}" -m lingvo_pipe.tools.commands "$@"\n'
        )
        program.chmod(0o755)
        script = folder / "train.sbatch"
        script.write_text(script_text)
        slurm.environment |= {
            "CUDA_VISIBLE_DEVICES": "-1",
            "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
            "TFDS_DATA_DIR": str(folder / "data_sets"),
            "MODEL": SMALL.removeprefix("--model="),
            "LOGDIR": str(folder / "run"),
        }
        self._slurm = slurm
        self._written = folder / "output.txt"
        here = [f"--chdir={folder}", f"--output={self._written}"]
        # The page's job is for two nodes with GPUs; this machine is one without.
        this = ["--nodes=1", f"--ntasks-per-node={NUM_TASKS}", "--gpus-per-node=0"]
        self.logdir = folder / "run"
        self._id = slurm.submit(script, *here, *this, flags=[*FLAGS, *flags])

    def output(self) -> str:
        """Returns all that the tasks have written so far."""
        return self._written.read_text() if self._written.exists() else ""

    def kill(self, find: Callable[[], int]) -> None:
        """Waits until the job has saved a step, and kills a task with SIGKILL."""
        self._wait_for_step()
        os.kill(find(), signal.SIGKILL)

    def signal_tasks(self) -> None:
        """Waits until the job has saved a step, and sends SIGTERM to all tasks."""
        self._wait_for_step()
        self._slurm.run("scancel", "--signal=TERM", str(self._id))

    def _wait_for_step(self) -> None:
        before = self._num_saved()
        while self._num_saved() == before:
            assert self._slurm.state(self._id) in ("PENDING", "RUNNING"), self.output()
            time.sleep(0.1)

    def _num_saved(self) -> int:
        return max(steps_in(self.logdir / "checkpoints"), default=0)

    def trainer(self) -> int:
        """Returns the process of the trainer, which holds the run's lock."""
        (found,) = re.findall(r"\d+", (self.logdir / LOCK_NAME).read_text())[:1]
        return int(found)

    def worker(self) -> int:
        """Returns the process of the first worker, which the trainer names."""
        return int(re.findall(r"worker:0 at .*?process (\d+)", self.output())[-1])

    def wait(self) -> str:
        """Returns the job's last state."""
        return self._slurm.wait(self._id)

    def exit_code(self) -> int:
        """Returns the exit code of the job's script."""
        return self._slurm.exit_code(self._id)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """A job of three tasks, of which a worker and the trainer are killed."""
    folder = tmp_path_factory.mktemp("slurm")
    with one_node_slurm(folder / "slurm") as slurm:
        job = Job(slurm, folder)
        job.kill(job.worker)
        job.kill(job.trainer)
        assert job.wait() == "COMPLETED", job.output()
        yield job


@pytest.mark.exhaustive
def test_an_elastic_job_goes_on_without_a_killed_task(tmp_path: Path) -> None:
    """Its script then starts all tasks again, which find that the run has ended."""
    script = SBATCH.replace("--kill-on-bad-exit=1", GOES_ON)
    assert script != SBATCH
    script = script.replace("#SBATCH --requeue", "#SBATCH --no-kill")
    with one_node_slurm(tmp_path / "slurm") as slurm:
        job = Job(slurm, tmp_path, script, *ELASTIC, "--devices=3")
        job.kill(job.worker)
        assert job.wait() == "COMPLETED", job.output()
    left_out = rf"^elastic: {NUM_TASKS - 1} of {NUM_TASKS} devices; left out: worker:0$"
    assert re.search(left_out, job.output(), re.MULTILINE), job.output()
    _check_is_whole(job, tmp_path)


@pytest.mark.exhaustive
def test_a_job_that_gets_a_signal_saves_and_ends(tmp_path: Path) -> None:
    """Its script takes no worker for killed, and starts no task again.

    After the trainer's code, which is not 0, srun ends the workers, too.
    """
    with one_node_slurm(tmp_path / "slurm") as slurm:
        job = Job(slurm, tmp_path)
        job.signal_tasks()
        assert job.wait() == "FAILED", job.output()
        assert job.exit_code() == STOPPED_CODE, job.output()
    assert "Resumed " not in job.output()


@pytest.mark.exhaustive
def test_killed_tasks_are_started_again_and_the_run_is_whole(
    job: Job, tmp_path: Path
) -> None:
    assert job.output().count("Resumed ") == 2, job.output()
    _check_is_whole(job, tmp_path)


@pytest.mark.exhaustive
def test_devices_that_the_job_does_not_use_are_named(job: Job) -> None:
    assert re.search(r"worker:1/cpu:0\b.*\bnot use|not use.*\bworker:1", job.output())


def _check_is_whole(job: Job, folder: Path) -> None:
    """Checks that a job's run has the bytes of an undisturbed run."""
    folder = folder / "undisturbed"
    folder.mkdir()
    write_small_model(folder)
    CommandLine(folder).train(SMALL, "--logdir=whole", *FLAGS)
    undisturbed = saved_variables(folder / "whole", STEPS)
    assert saved_variables(job.logdir, STEPS) == undisturbed
