"""Elastic runs on workers, which are killed, stopped, cut off and started.

The workers are on this machine, or each on a host of its own (see `network_hosts`).
"""

from __future__ import annotations

import re
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from lingvo_pipe.pipeline.devices.own_addresses import unused_ports
from lingvo_pipe.training.checkpoint.checkpoint_files import steps_in
from tests.support.command_line import CommandLine, saved_variables, write_small_model
from tests.support.forked_process import ForkedProcess
from tests.support.network_hosts import Host, set_link
from tests.trainer import translating_models

_OFTEN = (
    "task.train.report_interval_steps : 1; task.eval.interval_steps : 70; "
    "task.train.save_interval_steps"
)
# Short, to keep tests short; a busy machine answers within the timeout, too.
_ELASTIC = (
    *("--elastic", "--lost_worker_seconds=1", "--grow_seconds=1"),
    "--worker_timeout_seconds=8",
)
_HERE = Path(__file__).parent
_PATIENCE = 300.0  # Seconds, on a busy machine.
_POLL = 0.05


class ElasticRuns:
    """A folder of runs of a model, elastic ones and others.

    Args:
        folder: the folder.
        steps: number of steps of each run.
        override: more params of the model.
        save_every: number of steps from one checkpoint to the next.
        model: one of `slow_models`.
    """

    def __init__(
        self,
        folder: Path,
        steps: int,
        override: str = "task.pipeline.splits : 4",
        save_every: int = 5,
        model: str = "Images",
    ) -> None:
        write_small_model(folder)
        for file in (_HERE / "slow_models.py", Path(translating_models.__file__)):
            shutil.copy(file, folder / "mine")
        translating_models.write_data(folder)
        self.folder, self.command_line = folder, CommandLine(folder)
        self._steps, text = steps, f"{_OFTEN} : {save_every}; {override}"
        self._flags = (
            f"--model=mine.slow_models.{model}",
            *(["--data_dir=."] if model == "Text" else []),
            f"--max_steps={steps}",
            f"--model_params_override={text}",
        )

    def train(self, name: str, *flags: str) -> None:
        """Trains without disturbance."""
        self.command_line.train(*self._flags, *flags, f"--logdir={name}")

    def start(
        self,
        name: str,
        num_workers: int,
        *flags: str,
        hosts: Sequence[Host] = (),
        is_elastic: bool = True,
    ) -> ElasticRun:
        """Starts a run and its workers.

        With `hosts`, the trainer is on the first, and each worker on one of the others.
        """
        (self.folder / "slow").touch()
        elastic = _ELASTIC if is_elastic else ()
        flags = (*self._flags, *elastic, *flags, f"--logdir={name}")
        return ElasticRun(self, self.folder / name, num_workers, flags, hosts)

    def hurry(self) -> None:
        """Makes the steps of all runs short."""
        (self.folder / "slow").unlink()

    def results(self, name: str) -> tuple[dict[str, bytes], str]:
        """Returns the variables and the metrics at the end of a run."""
        run = self.folder / name
        return saved_variables(run, self._steps), (run / "metrics.jsonl").read_text()


class ElasticRun:
    """An elastic run, and its workers."""

    def __init__(
        self,
        runs: ElasticRuns,
        logdir: Path,
        num_workers: int,
        flags: Sequence[str],
        hosts: Sequence[Host],
    ) -> None:
        self._runs, self._logdir, self._hosts = runs, logdir, list(hosts)
        self._output = logdir.with_suffix(".txt")
        addresses = [f"127.0.0.1:{port}" for port in unused_ports(num_workers)]
        if hosts:
            addresses = [f"{host.ip}:2222" for host in hosts[1:]]
        self._cluster = f"--cluster=worker={','.join(addresses)}"
        self._workers: dict[int, ForkedProcess] = {}
        self._ending: set[int] = set()  # Workers that have got SIGTERM.
        for task in range(num_workers):
            self.start_worker(task)
        self._flags = (*flags, self._cluster)
        self._before = ""  # The output of trainers that were killed.
        self.start_trainer()
        # When the last disturbance came: characters of the output, and saved steps.
        self._read, self._saved = 0, 0

    @property
    def output(self) -> str:
        """All output of the trainer so far."""
        return self._before + self._output.read_text()

    @property
    def num_saved(self) -> int:
        """The number of steps that the newest checkpoint has."""
        return max(steps_in(self._logdir / "checkpoints"), default=0)

    def start_trainer(self) -> None:
        """Starts the trainer."""
        self._trainer = self._runs.command_line.start_trainer(
            *self._flags, output=self._output, network=self._network(0)
        )

    def start_worker(self, task: int, more: str = "") -> None:
        """Starts a worker, or continues it if it is stopped or cut off.

        `more` is added to the worker's --cluster.
        """
        if self._hosts:
            set_link(self._hosts, task + 1, is_up=True)
        worker = self._workers.get(task)
        if worker is not None and task in self._ending:
            worker.wait(_PATIENCE)
            self._ending.remove(task)
        if worker is not None and worker.poll() is None:
            worker.send_signal(signal.SIGCONT)
        else:
            if worker is not None:
                worker.communicate()
            flags = ("--job=worker", f"--task={task}", self._cluster + more)
            self._workers[task] = self._runs.command_line.start_trainer(
                *flags, network=self._network(task + 1)
            )

    def disturb(self, number: signal.Signals | None, *tasks: int) -> None:
        """Kills or stops workers by a signal, or cuts them off without one."""
        self._read, self._saved = len(self.output), self.num_saved
        for task in tasks:
            self._ending.discard(task)
            if number == signal.SIGTERM:
                self._ending.add(task)
            if number is None:
                set_link(self._hosts, task + 1, is_up=False)
            else:
                self._workers[task].send_signal(number)
            if number == signal.SIGKILL:
                self._workers[task].wait(_PATIENCE)  # Its port is free then.

    def wait_for_worker(self, task: int) -> int | None:
        """Waits for the end of a worker, and returns its exit code."""
        return self._workers[task].wait(_PATIENCE)

    def kill_trainer(self) -> None:
        """Kills the trainer, and starts it again."""
        self._trainer.kill()
        self._trainer.wait()
        self._before = self.output
        self._read, self._saved = len(self._before), self.num_saved
        self.start_trainer()

    def wait_for_devices(self, *tasks: int) -> None:
        """Waits until the run has saved a step on these workers' devices alone."""
        names = ", ".join(f"worker:{task}/cpu:0" for task in tasks)
        stages = re.escape(f"stages: {len(tasks)} ({names})")
        self._wait(lambda new: re.search(rf"{stages}(.|\n)*^step \d", new, re.M))
        self.wait_for_checkpoint()

    def wait_for_line(self, pattern: str) -> None:
        """Waits for a line of output since the last disturbance."""
        self._wait(lambda new: re.search(pattern, new))

    def wait_for_checkpoint(self) -> None:
        """Waits until the run has saved a step since the last disturbance."""
        self._wait(lambda new: self.num_saved > self._saved)

    def finish(self) -> str:
        """Waits for the end of the run, and returns its output."""
        self._runs.hurry()
        assert self._trainer.wait(_PATIENCE) == 0, self.output
        return self.output

    def stop_trainer(self) -> int | None:
        """Sends SIGTERM to the trainer, and returns its exit code."""
        self._trainer.send_signal(signal.SIGTERM)
        return self._trainer.wait(_PATIENCE)

    def end(self) -> None:
        """Ends all processes."""
        for process in (self._trainer, *self._workers.values()):
            process.kill()
            process.communicate()

    def _network(self, number: int) -> str | None:
        return self._hosts[number].name if self._hosts else None

    def _wait(self, is_reached: Callable[[str], object]) -> None:
        end = time.monotonic() + _PATIENCE
        while not is_reached(self.output[self._read :]):
            assert time.monotonic() < end, self.output
            assert self._trainer.poll() is None, self.output
            time.sleep(_POLL)
