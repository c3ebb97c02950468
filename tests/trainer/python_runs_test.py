"""Runs from Python are the trainer's: resumed, evaluated, stopped by a signal."""

from __future__ import annotations

import ast
import re
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import lingvo_pipe as lp
from lingvo_pipe.core.errors import UserAttributeError, UserTypeError
from lingvo_pipe.training.run.metrics_log import FILE_NAME
from tests.support.command_line import CommandLine, saved_variables
from tests.support.errors import fails
from tests.support.small_model import Small

RATE: dict[str, Any] = {"task.train.learning_rate": 0.02}


class Listed(Small):
    def Task(self) -> Any:
        p = super().Task()
        p.pipeline.splits = [2, 5]
        return p


def _class_of_a_cell() -> Any:
    """Returns a class as of a notebook's cell: in no file, and not registered."""
    return type("OfACell", (Small,), {"__module__": "a_notebook"})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> lp.Run:
    """Returns a run of two steps on two devices, and one on one device."""
    logdir = tmp_path_factory.mktemp("run")
    tf.constant(0.0)  # The process keeps the devices of all tests.
    lp.train(_class_of_a_cell(), logdir, devices=2, max_steps=2, **RATE)
    return lp.train(_class_of_a_cell(), logdir, devices=1, **RATE)


def test_it_ends_in_the_bytes_of_a_run_by_name(run: lp.Run, tmp_path: Path) -> None:
    model = "tests.support.small_model.Small"
    undisturbed = lp.train(model, tmp_path, devices="cpu:0", **RATE)
    assert saved_variables(run.logdir, 3) == saved_variables(undisturbed.logdir, 3)
    assert run.metrics[-2:] == undisturbed.metrics
    assert run.metrics[-2]["learning_rate"] == pytest.approx(0.02)


def test_it_is_opened_evaluated_and_shown(run: lp.Run) -> None:
    same = lp.Run(str(run.logdir))
    test = same.metrics[-1]
    metrics = lp.evaluate(_class_of_a_cell(), run.logdir, devices=1, **RATE)
    assert metrics == {name: test[name] for name in metrics}
    assert same.load().step == 3
    assert same.report() == run.logdir / "report.html"


@pytest.mark.exhaustive
def test_it_starts_from_the_weights_of_another(run: lp.Run, tmp_path: Path) -> None:
    names = "/b$=/b;cells_0/=-"
    first, again = (
        lp.train(Small, tmp_path, init_from=run.logdir, init_names=names, max_steps=n)
        for n in (1, 2)
    )
    assert (first.step, again.step) == (2, 2)
    text = (tmp_path / "initial_weights.txt").read_text()
    assert f" from {run.logdir}/checkpoints/ckpt-00000003," in text
    assert "'cells_0/'" in text
    params = (tmp_path / "params.txt").read_text()
    assert f"init_from_checkpoint_override : '{run.logdir}'" in params
    with fails(path="init_from", got=f"{tmp_path}/no, which does not exist"):
        lp.train(Small, tmp_path / "new", init_from=tmp_path / "no")
    assert not (tmp_path / "new").exists()


def test_mistakes(tmp_path: Path) -> None:
    with fails(UserAttributeError, path="task.train.rate"):
        unknown: dict[str, Any] = {"task.train.rate": 1}
        lp.train(Small, tmp_path, **unknown)
    with fails(path="devices", got=0):
        lp.train(Small, tmp_path, devices="0")
    with fails(UserTypeError, path="builtins.int"):
        lp.train(int, tmp_path)
    with fails(path="logdir", got=str(tmp_path)) as error:
        lp.Run(tmp_path)
    assert "--" not in str(error.value)
    with fails(path="profile_step", got=0):
        lp.train(Small, tmp_path, profile_step=0)
    with fails(path="init_from", got=""):
        lp.train(Small, tmp_path, init_from="")


def test_a_later_call_of_fewer_devices_keeps_the_first_ones(tmp_path: Path) -> None:
    call = "lp.initialize_devices"
    code = f"{call}(4); {call}(1); tf.constant(1.0); print({call}(3)[-1])"
    imports = "import tensorflow as tf; import lingvo_pipe as lp"
    result = CommandLine(tmp_path).run("-c", f"{imports}; {code}")
    assert result.output.endswith("/device:CPU:2\n"), result.errors


def test_hints_are_written_as_arguments(run: lp.Run, tmp_path: Path) -> None:
    with fails(path="devices") as info:
        lp.train(Listed, tmp_path, devices=3)
    (text,) = re.findall(r"\*\*(\{.*\})", info.value.hint)
    change = ast.literal_eval(text)
    with fails(path="profile_step"):  # The devices are accepted.
        lp.train(Listed, tmp_path, devices=3, profile_step=0, **change)
    other: dict[str, Any] = {"task.pipeline.num_micro_batches": 2}
    with fails() as info:
        lp.evaluate(_class_of_a_cell(), run.logdir, devices=1, **other)
    assert f"allow_params_change={[*other][0]!r}" in info.value.hint


def test_changes_are_accepted_by_a_text_of_paths(tmp_path: Path) -> None:
    allowed = "task.train.learning_rate, task.train.rate"
    with fails(path="allow_params_change", got="task.train.rate"):
        lp.train(Small, tmp_path, allow_params_change=allowed)


def test_an_interrupt_saves_the_run_and_returns(tmp_path: Path) -> None:
    has_ended, file = threading.Event(), tmp_path / FILE_NAME

    def has_trained() -> bool:
        return file.exists() and '"train"' in file.read_text()

    def interrupt() -> None:
        while not has_trained() and not has_ended.wait(0.1):
            pass
        if not has_ended.is_set():
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    every: dict[str, Any] = {"task.train.report_interval_steps": 1}
    try:
        run = lp.train(Small, tmp_path, devices=1, max_steps=100_000, **every)
    finally:
        has_ended.set()
        thread.join()
    assert 0 < run.load().step < 100_000
