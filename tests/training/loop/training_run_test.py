"""Runs stop by a signal or without improvement, and resume."""

from __future__ import annotations

import os
import re
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.training.checkpoint.checkpointer import Checkpointer
from lingvo_pipe.training.eval.evaluation import Evaluation
from lingvo_pipe.training.loop.save_times import SaveRequest
from lingvo_pipe.training.loop.training_loop import train
from lingvo_pipe.training.optim.keras_optimizer import OptimizerParams, ScheduleParams
from lingvo_pipe.training.run.best_evaluation import read_best
from lingvo_pipe.training.run.metrics_log import read_metrics
from lingvo_pipe.training.run.progress import Progress
from lingvo_pipe.training.run.run_directory import RunDirectory
from lingvo_pipe.training.step.train_step import TrainStep
from tests.support.cases import exhaustive
from tests.support.command_line import snapshot
from tests.support.errors import fails
from tests.training.toy_run import (
    PARAMS,
    Input,
    batch,
    make_task,
    run,
    saved_bytes,
    saved_steps,
)

STEPS = 6
# With this learning rate the loss grows.
GROWING: dict[str, Any] = {"learning_rate": 3.0, "save_interval_steps": 5}
BY_LOSS: dict[str, Any] = {"best_metric": "-loss"}
STOPPING = BY_LOSS | {"patience": 1}


def data() -> Input:
    return Input(*map(batch, range(STEPS)))


def task(eval_params: dict[str, Any] | None = None, **train_params: Any) -> Any:
    p = make_task(**{"max_steps": STEPS, **train_params}).params.Copy()
    p.eval.Set(interval_steps=2, **(eval_params or {}))
    return p.Instantiate()


def signal_after(
    monkeypatch: pytest.MonkeyPatch, cls: type, number: int
) -> Callable[[], None]:
    """Sends SIGTERM in a call, counted from 1; returns a function to undo it."""
    calls = iter(range(1, 1000))
    original = cls.__call__

    def sending(self: Any, *args: Any) -> Any:
        if next(calls) == number:
            signal.raise_signal(signal.SIGTERM)
        return original(self, *args)

    monkeypatch.setattr(cls, "__call__", sending)
    return monkeypatch.undo


def learning_task() -> Any:
    """Returns a task whose state holds slots, averages and a rate that changes."""
    decay = ScheduleParams("ExponentialDecay", decay_steps=2, decay_rate=0.9)
    momentum = OptimizerParams("SGD", momentum=0.9)
    rates: dict[str, Any] = {"lr_schedule": decay, "optimizer": momentum}
    return task(save_interval_steps=5, ema_decay=0.9, **rates)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    logdir = tmp_path_factory.mktemp("runs") / "uninterrupted"
    run(learning_task(), data(), logdir)
    return logdir


@pytest.mark.parametrize(
    ("cls", "number", "stopped_at"),
    [
        exhaustive(TrainStep, 1, 1),
        exhaustive(TrainStep, 4, 4),
        (Evaluation, 1, 2),
        exhaustive(Evaluation, 3, 6),
    ],
)
def test_a_stopped_run_resumes_and_ends_like_an_uninterrupted_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    uninterrupted: Path,
    cls: type,
    number: int,
    stopped_at: int,
) -> None:
    undo = signal_after(monkeypatch, cls, number)
    logged: list[str] = []
    assert run(learning_task(), data(), tmp_path / "run", logged.append) == {}
    undo()
    pattern = rf"Stopped\b.*\bSIGTERM\b.*step {stopped_at}\b.*\bsaved\b"
    assert re.match(pattern, logged[-1])
    (announced,) = (line for line in logged if line.startswith("SIGTERM: "))
    assert re.search(rf"waiting for .*\bstep {stopped_at}\b", announced)
    assert saved_steps(tmp_path / "run")[-1] == stopped_at
    run(learning_task(), data(), tmp_path / "run")
    assert saved_bytes(tmp_path / "run", STEPS) == saved_bytes(uninterrupted, STEPS)
    files = [logdir / "metrics.jsonl" for logdir in (tmp_path / "run", uninterrupted)]
    assert files[0].read_text() == files[1].read_text()


def test_a_checkpoint_is_written_when_another_thread_asks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, saves = SaveRequest(patience=0.0), list[tuple[int, bool]]()
    original = TrainStep.__call__

    def asking(self: TrainStep, *args: Any) -> Any:
        saved = max(saved_steps(tmp_path), default=0)
        saves.append((saved, request.ask() if saves else False))
        return original(self, *args)

    monkeypatch.setattr(TrainStep, "__call__", asking)
    run(task(save_interval_steps=9), data(), tmp_path, save_request=request)
    assert saves == [(0, False), (0, False), *((n, False) for n in (2, 3, 4, 5))]


@pytest.fixture(scope="module")
def asked(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, list[str], list[int]]:
    """A run that may roll back, asked to save: its directory, log and progress."""
    request, steps = SaveRequest(patience=0.0), list[int]()
    request.ask()
    original = Progress.advance

    def advance(self: Progress, step: int) -> None:
        steps.append(step)
        original(self, step)

    logdir, logged = tmp_path_factory.mktemp("runs") / "asked", list[str]()
    intervals: Any = {"save_interval_steps": 4, "report_interval_steps": 4}
    may_roll_back = task(loss_spike_factor=99.0, **intervals)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Progress, "advance", advance)
        run(may_roll_back, data(), logdir, logged.append, save_request=request)
    return logdir, logged, steps


def test_a_run_that_may_roll_back_saves_when_it_is_due(asked: Any) -> None:
    """The step to which it rolls back would depend on when it was asked."""
    logdir, _, _ = asked
    assert saved_steps(logdir) == [0, 4, STEPS]


def test_the_progress_is_told_of_each_step(asked: Any) -> None:
    _, logged, steps = asked
    assert steps == [*range(1, STEPS + 1)]
    (line,) = (line for line in logged if line.startswith("Trained "))
    assert re.match(rf"Trained {STEPS} steps in \d", line)


def test_wrong_params_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with fails(path="task.train.keep_checkpoints", got=0):
        run(task(keep_checkpoints=0), data(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_best_checkpoint_is_kept(tmp_path: Path) -> None:
    params = GROWING | {"keep_checkpoints": 1, "save_interval_steps": 3}
    run(task(BY_LOSS, **params), data(), tmp_path)
    tests = {
        r["step"]: r["loss"] for r in read_metrics(tmp_path) if r["split"] == "test"
    }
    best = min(tests, key=tests.__getitem__)
    assert best < STEPS
    assert read_best(tmp_path / "best.json")["step"] == best
    assert saved_steps(tmp_path) == [best, STEPS]


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, list[str]]:
    """A run that stopped at the first evaluation without improvement, and its log."""
    logdir, logged = tmp_path_factory.mktemp("runs") / "impatient", list[str]()
    metrics = run(task(STOPPING, **GROWING), data(), logdir, logged.append)
    return logdir, metrics, logged


def test_training_stops_without_improvement(impatient: Any, tmp_path: Path) -> None:
    logdir, metrics, logged = impatient
    records = read_metrics(logdir)
    tests = [r for r in records if r["split"] == "test"]
    assert tests[-1]["step"] < STEPS
    # Once the last evaluation ran, and was written and counted, twice.
    assert [r["step"] for r in tests] == list(range(2, tests[-1]["step"] + 1, 2))
    assert tests[-1]["loss"] >= tests[-2]["loss"]
    assert {**tests[-1], **metrics} == tests[-1]
    assert any(re.match(r"Stopped\b.*\b1\b.*-loss\b", line) for line in logged)
    # The same command again has nothing to do, even if the best checkpoint is lost.
    again = shutil.copytree(logdir, tmp_path / "again")
    best = read_best(again / "best.json")["step"]
    (again / f"checkpoints/ckpt-{best:08d}.index").unlink()
    assert run(task(STOPPING, **GROWING), data(), again) == metrics
    assert read_metrics(again) == records
    files = [folder / "parts.json" for folder in (again, logdir)]
    assert files[0].read_text() == files[1].read_text()


@pytest.mark.exhaustive
def test_a_run_resumed_with_more_patience_equals_one_started_with_it(
    tmp_path: Path, impatient: Any
) -> None:
    shutil.copytree(impatient[0], tmp_path / "parts")
    for name in ("parts", "whole"):
        run(task(BY_LOSS | {"patience": 2}, **GROWING), data(), tmp_path / name)
    texts = [(tmp_path / n / "metrics.jsonl").read_text() for n in ("parts", "whole")]
    assert texts[0] == texts[1]


@pytest.mark.exhaustive
def test_a_best_metric_set_later_chooses_an_existing_checkpoint(
    tmp_path: Path,
) -> None:
    """Once the best was an evaluation whose checkpoint had been deleted."""
    params = GROWING | {"keep_checkpoints": 1, "save_interval_steps": 2}
    run(task(**params, max_steps=4), data(), tmp_path)
    assert saved_steps(tmp_path) == [4]
    logged: list[str] = []
    run(task(BY_LOSS, **params), data(), tmp_path, logged.append)
    assert any(re.search(r"best\b.*step 2\b.*checkpoint", line) for line in logged)
    assert read_best(tmp_path / "best.json")["step"] in saved_steps(tmp_path)
    # Without a metric there is no best.
    run(task(**params), data(), tmp_path)
    assert read_best(tmp_path / "best.json") == {}


def test_a_failed_save_is_not_logged_as_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the line was logged before the checkpoint was written."""

    def fail(*_: Any) -> None:
        raise OSError("no room")

    monkeypatch.setattr(Checkpointer, "_write", fail)
    undo = signal_after(monkeypatch, TrainStep, 3)
    logged: list[str] = []
    with pytest.raises(OSError, match="room"):
        run(task(save_interval_steps=5), data(), tmp_path, logged.append)
    undo()
    assert not any(line.startswith("Stopped") for line in logged)


def test_a_signal_while_the_last_checkpoint_is_written_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the system's handlers were restored by then."""
    original, main = Checkpointer._write, threading.main_thread()

    def write(self: Checkpointer, step: int, values: Any) -> None:
        if step == STEPS:
            signal.pthread_kill(main.ident or 0, signal.SIGTERM)
        original(self, step, values)

    monkeypatch.setattr(Checkpointer, "_write", write)
    run(task(save_interval_steps=5), data(), tmp_path)
    assert saved_steps(tmp_path) == [5, 6]


def test_a_run_that_another_trainer_started_meanwhile_is_not_changed(
    tmp_path: Path, impatient: Any
) -> None:
    """Once the second of two trainers overwrote the first's files."""

    class Slow(Input):
        """An input during whose creation another trainer starts and ends."""

        def EvalBatches(self) -> Any:
            if not (tmp_path / "params.txt").exists():
                shutil.copytree(impatient[0], tmp_path, dirs_exist_ok=True)
            return super().EvalBatches()

    second = RunDirectory(tmp_path, "toy.Toy")
    with fails(path=str(tmp_path)):
        train(task(), data(), Slow(batch(9)), second, "other : 1\n")
    assert snapshot(tmp_path) == snapshot(impatient[0])


def test_an_unknown_metric_is_an_error_before_the_first_step(
    tmp_path: Path,
) -> None:
    with fails(path="task.eval.best_metric", got="f1"):
        run(task({"best_metric": "f1"}), data(), tmp_path)
    assert saved_steps(tmp_path) == []


def test_a_second_trainer_is_rejected_and_changes_nothing(tmp_path: Path) -> None:
    first = RunDirectory(tmp_path, "toy.Toy")
    first.write_params(PARAMS)
    before = (tmp_path / "params.txt").read_text()
    first.lock()
    with fails(path=str(tmp_path)) as info:
        train(task(), data(), data(), RunDirectory(tmp_path, "toy.Toy"), "other : 1\n")
    assert f"process {os.getpid()} " in info.value.got
    assert (tmp_path / "params.txt").read_text() == before
    first.unlock()


@pytest.mark.parametrize(
    ("lost", "number"),
    [(".", 1), exhaustive(".", 4), exhaustive("metrics.jsonl", 2)],
)
def test_a_directory_that_is_removed_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str, number: int
) -> None:
    """It is not written in part: the same command starts anew.

    It goes in one move: removing its files one by one would race with the thread that
    saves a checkpoint, and fail now and then with "Directory not empty".
    """
    calls = iter(range(1, 1000))
    step, path = TrainStep.__call__, tmp_path / "run" / lost

    def removing(self: Any, *args: Any) -> Any:
        if next(calls) == number:
            path.rename(tmp_path / "removed")
        return step(self, *args)

    monkeypatch.setattr(TrainStep, "__call__", removing)
    with pytest.raises(UserValueError, match=rf"^{tmp_path}/run:"):
        run(task(), data(), tmp_path / "run")
    assert not path.exists()
    if (lost, number) == (".", 4):  # As any first start, for nothing is left.
        run(task(), data(), tmp_path / "run")
        assert saved_steps(tmp_path / "run")[-1] == STEPS
        assert read_metrics(tmp_path / "run")[-1]["step"] == STEPS
