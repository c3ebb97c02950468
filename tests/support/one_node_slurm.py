"""Slurm with one node, this machine, on which three tasks may run."""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from lingvo_pipe.pipeline.devices.own_addresses import unused_ports

NUM_TASKS = 3
_PATIENCE = 240.0
_CONFIG = """\
ClusterName=one
SlurmctldHost={node}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
KillWait=10
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
NodeName={node} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes={node} Default=YES State=UP
"""


class Slurm:
    """A running Slurm.

    Attributes:
        environment: of its commands.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def run(self, *command: str) -> str:
        """Runs a command such as squeue; returns what it writes."""
        return subprocess.run(
            command, env=self.environment, check=True, capture_output=True, text=True
        ).stdout

    def submit(self, script: Path, *options: str, flags: Sequence[str] = ()) -> int:
        """Submits a batch script with flags of its own; returns the job's number."""
        return int(self.run("sbatch", "--parsable", *options, str(script), *flags))

    def state(self, job: int) -> str:
        """Returns the state of a job, such as RUNNING or COMPLETED."""
        return self._field(job, "JobState")

    def exit_code(self, job: int) -> int:
        """Returns the exit code of a job's script."""
        return int(self._field(job, "ExitCode"))

    def wait(self, job: int) -> str:
        """Waits until a job has ended; returns its state."""
        end = time.monotonic() + _PATIENCE
        while (state := self.state(job)) in ("PENDING", "RUNNING", "COMPLETING"):
            assert time.monotonic() < end, self.log()
            time.sleep(0.2)
        return state

    def _field(self, job: int, name: str) -> str:
        shown = self.run("scontrol", "show", "job", str(job))
        (value,) = re.findall(rf"\b{name}=(\w+)", shown)
        return value

    def log(self) -> str:
        """Returns the ends of the logs of Slurm's own processes."""
        logs = sorted(self._folder.glob("*.log"))
        return "\n".join(path.read_text()[-2000:] for path in logs)


@contextlib.contextmanager
def one_node_slurm(folder: Path) -> Iterator[Slurm]:
    """Yields a Slurm that keeps its files in a folder; skips without its programs."""
    programs = [shutil.which(name) for name in ("slurmctld", "slurmd", "sbatch")]
    if None in programs:
        pytest.skip("needs Slurm's programs, such as Debian's slurm-wlm")
    (folder / "state").mkdir(parents=True)
    (folder / "spool").mkdir()
    config = _CONFIG.format(
        node=socket.gethostname().partition(".")[0],
        ports=unused_ports(2),
        user=getpass.getuser(),
        folder=folder,
        cpus=NUM_TASKS,
    )
    (folder / "slurm.conf").write_text(config)
    slurm = Slurm(folder)
    daemons = [
        subprocess.Popen(
            [program, "-D"],
            env=slurm.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for program in programs[:2]
        if program is not None
    ]
    try:
        _wait_until_idle(slurm)
        yield slurm
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait()


def _wait_until_idle(slurm: Slurm) -> None:
    end = time.monotonic() + _PATIENCE
    while True:
        with contextlib.suppress(subprocess.CalledProcessError):
            if slurm.run("sinfo", "--noheader", "--format=%T").strip() == "idle":
                return
        assert time.monotonic() < end, slurm.log()
        time.sleep(0.2)
