"""Five minutes of training on workers, with followers, and a full disk halfway.

The memory of every process stays flat. A worker's is compared only with what it was
while the same trainer ran. The trainer ends on the full disk with a line, and resumes
when there is space again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen

import pytest

from lingvo_pipe.cli.error_output import STOPPED_CODE
from lingvo_pipe.pipeline.devices.own_addresses import unused_ports
from tests.support.command_line import CommandLine, write_small_model
from tests.trainer.translating_models import write_data

SECONDS = 180.0
WARM_UP = 0.4  # Part of a process's samples that is left out: it still fills its pools.
FLAT = 1.03
WORKERS = "worker 0", "worker 1"
DISK_BYTES = 256 << 20
MODEL = ("--model=mine.translating_models.Letters", "--data_dir=.")
OVERRIDE = (
    "--model_params_override=task.train.save_interval_steps : 100; "
    "task.train.report_interval_steps : 50; task.eval.interval_steps : 400"
)


class Soak:
    """Processes around a run on a small disk, and samples of their memory."""

    def __init__(self, folder: Path):
        self.disk = folder / "disk"
        write_small_model(folder)
        shutil.copy(Path(__file__).with_name("translating_models.py"), folder / "mine")
        write_data(folder)
        cluster = "worker=" + ",".join(f"localhost:{port}" for port in unused_ports(2))
        run = (*MODEL, f"--logdir={self.disk / 'run'}")
        devices = "--devices=worker:0/cpu:0,worker:1/cpu:0"
        trains = (*run, f"--cluster={cluster}", devices, "--max_steps=1000000")
        follows = (*run, "--devices=1", "--follow_seconds=300")
        self._commands = {
            **{
                name: ("--job=worker", f"--task={i}", f"--cluster={cluster}")
                for i, name in enumerate(WORKERS)
            },
            "trainer": (*trains, OVERRIDE),
            "evaler": (*follows, "--job=evaler"),
            "decoder": (*follows, "--job=decoder"),
        }
        self._command_line = CommandLine(folder)
        self._running: dict[str, Popen[str]] = {}
        self.samples: dict[tuple[str, int], list[int]] = {}
        self.ended: list[tuple[str, str]] = []

    @property
    def names(self) -> list[str]:
        """The names of all processes."""
        return list(self._commands)

    def run(self, seconds: float) -> None:
        """Keeps all processes running, and samples their memory each second."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for name, command in self._commands.items():
                self._keep(name, command)
            time.sleep(1.0)

    def wait_for_the_end_of(self, name: str) -> str:
        """Waits until a process ends; returns what it wrote to standard error."""
        _, errors = self._running.pop(name).communicate(timeout=300)
        return errors

    def end(self, name: str) -> int:
        """Asks a process to end; returns its exit code."""
        process = self._running.pop(name)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)
        return process.returncode

    def kill(self) -> None:
        """Kills all processes."""
        for process in self._running.values():
            process.kill()
            process.communicate()

    def _keep(self, name: str, command: tuple[str, ...]) -> None:
        process = self._running.get(name)
        if process is not None and process.poll() is not None:
            _, errors = self._running.pop(name).communicate()
            self.ended.append((name, errors))
            process = None
        if process is None:
            process = self._command_line.start_fresh_trainer(*command)
            self._running[name] = process
        # A worker keeps what a trainer that ended left there for some minutes; so only
        # the first trainer's part can show that it grows.
        flat_while = self._running.get("trainer") if name in WORKERS else process
        if flat_while is None:
            return
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            resident = Path(f"/proc/{process.pid}/statm").read_text().split()[1:2]
            key = name, flat_while.pid
            self.samples.setdefault(key, []).extend(map(int, resident))


@contextlib.contextmanager
def _small_disk(folder: Path) -> Iterator[None]:
    """Mounts a disk of its own at a folder; skips the test where that is forbidden."""
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none"]
    mounted = subprocess.run(["mount", *options, str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip(mounted.stderr.decode())
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _fill(path: Path) -> None:
    """Writes a file until the disk is full."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 10, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))


def growth(samples: list[int]) -> float:
    """Returns the last tenth's median over the first's, warm-up left out."""
    warm = samples[int(len(samples) * WARM_UP) :]
    tenth = max(1, len(warm) // 10)
    return statistics.median(warm[-tenth:]) / statistics.median(warm[:tenth])


@pytest.mark.exhaustive
def test_memory_is_flat_and_a_full_disk_is_survived(tmp_path: Path) -> None:
    soak = Soak(tmp_path)
    with _small_disk(soak.disk), contextlib.ExitStack() as stack:
        stack.callback(soak.kill)
        soak.run(SECONDS / 2)
        assert soak.ended == []
        _fill(soak.disk / "filler")
        line = soak.wait_for_the_end_of("trainer")
        assert os.strerror(errno.ENOSPC) in line, line
        assert "Traceback" not in line
        (soak.disk / "filler").unlink()
        soak.run(SECONDS / 2)
        assert {name for name, _ in soak.ended} <= {"evaler", "decoder"}
        assert all(os.strerror(errno.ENOSPC) in line for _, line in soak.ended)
        assert soak.end("trainer") == STOPPED_CODE
    long = {k: v for k, v in soak.samples.items() if len(v) > SECONDS / 4}
    assert {name for name, _ in long} == set(soak.names)
    growths = {
        f"{name}, {pid}, {len(v)} s": growth(v) for (name, pid), v in long.items()
    }
    assert max(growths.values()) <= FLAT, growths
