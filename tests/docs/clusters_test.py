"""The commands on the page about clusters work, and all end in the same bytes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from absl import flags

from lingvo_pipe.cli import flags as trainer_flags
from lingvo_pipe.cli.error_output import STOPPED_CODE
from lingvo_pipe.pipeline.devices.cluster_spec import parse_cluster_spec
from lingvo_pipe.pipeline.devices.own_addresses import unused_ports
from tests.docs.pages import SOURCE_ROOT, page
from tests.support.command_line import ROOT, SMALL, saved_variables, write_small_model
from tests.support.forked_process import server_path

HERE = Path(__file__).parent
PAGE = page("clusters")
SECTIONS = dict(re.findall(r"^## (.*)\n([^#]*(?:#(?!# )[^#]*)*)", PAGE, re.MULTILINE))
(SBATCH,) = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
(YAML,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
DIGITS = "image.digits.AmoebaNetDigits"  # The page's model.
STEPS = 2
FOR_STEPS = f" --max_steps={STEPS}"


def _commands(section: str) -> list[str]:
    return re.findall(r"^    (lingvo_pipe train .*)$", SECTIONS[section], re.MULTILINE)


class Shell:
    """A folder in which the programs of the page are found, and train a small model."""

    def __init__(self, folder: Path):
        self.folder = folder
        write_small_model(folder)
        programs = folder / "bin"
        programs.mkdir()
        for name, arguments in {
            "lingvo_pipe": str(HERE / "forked_trainer.py"),
            "srun": str(HERE / "fake_srun.py"),
        }.items():
            (programs / name).write_text(
                f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n'
            )
            (programs / name).chmod(0o755)
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        self._environment = os.environ | {
            "CUDA_VISIBLE_DEVICES": "-1",
            "FORK_SERVER": server_path(),
            "PATH": os.pathsep.join([str(programs), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join(paths),
            "TFDS_DATA_DIR": str(folder / "data_sets"),
            "MODEL": SMALL.removeprefix("--model="),
        }
        self._started: list[subprocess.Popen[str]] = []

    def start(self, command: str, **variables: str) -> subprocess.Popen[str]:
        """Runs a command, as if it was typed but for the model."""
        command = command.replace(f"--model={DIGITS}", SMALL)
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=self.folder,
            env=self._environment | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def end(self) -> None:
        """Ends what still runs, with all that it has started."""
        for process in self._started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def variables(self, run: str, step: int = STEPS) -> dict[str, bytes]:
        """The bytes of a run in the folder."""
        return saved_variables(self.folder / run, step)


def _output(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, output + errors
    return output


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Programs of the page."""
    shell = Shell(tmp_path_factory.mktemp("page"))
    yield shell
    shell.end()


@pytest.fixture(scope="module")
def laptop(shell: Shell) -> dict[str, bytes]:
    """The variables of a run that is made as the page says."""
    text = "\n".join(_commands("On a laptop"))
    for port, free in zip((2222, 2223), unused_ports(2), strict=True):
        text = text.replace(f":{port}", f":{free}")
    assert DIGITS in text
    *workers, train = text.replace("/tmp/digits", "laptop").splitlines()
    assert len(workers) == 2
    for worker in workers:
        shell.start(worker)
    output = _output(shell.start(train + FOR_STEPS))
    assert "\nworkers: worker:0 at 127.0.0.2:" in f"\n{output}"
    assert "stages: 2 (worker:0/cpu:0, worker:1/cpu:0); micro" in output
    return shell.variables("laptop")


@pytest.mark.exhaustive
def test_one_command_for_all_tasks_of_tf_config(
    shell: Shell, laptop: dict[str, bytes]
) -> None:
    (command,) = _commands("With TF_CONFIG")
    command = command.replace("/tmp/digits", "tf_config") + FOR_STEPS
    chief, *workers = (f"localhost:{port}" for port in unused_ports(3))
    cluster = {"chief": [chief], "worker": workers}
    *_, trainer = (
        shell.start(command, TF_CONFIG=json.dumps({"cluster": cluster, "task": task}))
        for task in (
            *({"type": "worker", "index": i} for i in (0, 1)),
            {"type": "chief"},
        )
    )
    output = _output(trainer)
    assert re.match(r"TF_CONFIG: trainer\b.*\b2 workers", output)
    assert "stages: 2 (cpu:0, worker:0/cpu:0); micro" in output
    assert shell.variables("tf_config") == laptop


def _start_slurm(shell: Shell, run: str, steps: str) -> subprocess.Popen[str]:
    (shell.folder / "train.sbatch").write_text(SBATCH)
    job = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_NTASKS": "2", "LOGDIR": run}
    return shell.start(f"bash train.sbatch {steps}", **job)


@pytest.mark.exhaustive
def test_the_script_for_slurm_does_the_whole_thing(
    shell: Shell, laptop: dict[str, bytes]
) -> None:
    output = _output(_start_slurm(shell, "slurm", FOR_STEPS))
    assert "stages: 2 (cpu:0, worker:0/cpu:0); micro" in output
    assert re.search(r"\btrainer\b.*\blocalhost:\d", output.splitlines()[-1])
    assert shell.variables("slurm") == laptop


@pytest.mark.exhaustive
def test_a_job_of_slurm_that_is_told_to_end_saves_its_step(shell: Shell) -> None:
    often = "--model_params_override='task.train.save_interval_steps : 1'"
    job = _start_slurm(shell, "ended", often)
    saved = shell.folder / "ended" / "checkpoints"
    while job.poll() is None and not list(saved.glob("*.index")):
        time.sleep(0.05)
    (srun,) = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    os.kill(int(srun), signal.SIGTERM)
    output, errors = job.communicate(timeout=120)
    assert job.returncode == STOPPED_CODE
    assert "Traceback" not in errors
    (step,) = re.findall(r"^Stopped\b.*\bSIGTERM\b[^\d\n]*(\d+)", output, re.MULTILINE)
    (newest,) = sorted(saved.glob("*.index"))[-1:]
    assert newest.stem == f"ckpt-{int(step):08d}"


def test_pods_are_told_which_worker_they_are(shell: Shell) -> None:
    (command,) = re.findall(r">-\n((?:\s+\S.*\n)+?)\s+resources", YAML)
    echo = " ".join(command.split()).replace("exec lingvo_pipe train", "echo")
    output = _output(shell.start(echo, HOSTNAME="worker-1"))
    assert "--task=1 --cluster=worker=worker-0." in output
    clusters = set(re.findall(r"--cluster=(\S+)", YAML))
    assert len(clusters) == 1
    pods = parse_cluster_spec(clusters.pop()).workers
    (number,) = re.findall(r"replicas: (\d+)", YAML)
    assert pods == tuple(f"worker-{i}.workers:2222" for i in range(int(number)))


def test_every_flag_that_is_named_exists() -> None:
    of_slurm = {"ntasks-per-node", "nodes", "job-name", "gpus-per-node", "requeue"}
    of_slurm |= {
        "gpus-per-task",
        "signal",
        "kill-on-bad-exit",
        "no-kill",
        "distribution",
    }
    others = {*of_slurm, "workers"}  # The last is local_cluster's.
    named = set(re.findall(r"--([a-z][\w-]+)", PAGE)) - others
    known = {f.name for f in flags.FLAGS.flags_by_module_dict()[trainer_flags.__name__]}
    assert {"cluster", "task", "job", "listen_on_all_addresses"} <= named
    assert named - known == set()


def test_the_flags_with_which_losses_were_measured_are_named() -> None:
    """Nobody gets the times of the page with their defaults."""
    path = SOURCE_ROOT / "tests" / "local_cluster" / "elastic_runs.py"
    (text,) = re.findall(r"^_ELASTIC = (.*?)^\)", path.read_text(), re.M | re.DOTALL)
    flags_of_tests = re.findall(r"--\w+=\d+", text)
    assert len(flags_of_tests) == 3
    assert [flag for flag in flags_of_tests if flag not in PAGE] == []


def test_addresses_on_the_page_are_clusters() -> None:
    named = re.findall(r"--cluster=(\w+=[^\s`]+\d)", PAGE)
    assert len(named) > 5
    for text in named:
        assert parse_cluster_spec(text).workers
