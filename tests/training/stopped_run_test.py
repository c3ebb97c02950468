"""Runs that are stopped, by a signal or for want of improvement, and go on."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lingvo_pipe.training.best_evaluation import read_best_step
from lingvo_pipe.training.checkpoints import Checkpointer
from lingvo_pipe.training.evaluation import Evaluation
from lingvo_pipe.training.metrics_log import read_metrics
from lingvo_pipe.training.run_directory import RunDirectory
from lingvo_pipe.training.train_step import TrainStep
from lingvo_pipe.training.training_loop import train
from tests.training.toy_run import PARAMS, Input, batch, make_task, run, saved_bytes

STEPS = 6


def steps_with_checkpoints(logdir: Path) -> list[int]:
    return Checkpointer(logdir / "checkpoints", {}).saved_steps()


def data() -> Input:
    return Input(*map(batch, range(STEPS)))


def task(eval_params: dict[str, Any] | None = None, **train_params: Any) -> Any:
    p = make_task(**{"max_steps": STEPS, **train_params}).params.Copy()
    p.eval.Set(interval_steps=2, **(eval_params or {}))
    return p.Instantiate()


def signal_after(
    monkeypatch: pytest.MonkeyPatch, place: type, number: int
) -> Callable[[], None]:
    """Sends SIGTERM in the call with this number, from 1; returns what undoes it."""
    calls = iter(range(1, 1000))
    original = place.__call__

    def sending(self: Any, *args: Any) -> Any:
        if next(calls) == number:
            signal.raise_signal(signal.SIGTERM)
        return original(self, *args)

    monkeypatch.setattr(place, "__call__", sending)
    return monkeypatch.undo


@pytest.mark.parametrize(
    ("place", "number", "stopped_at"),
    [(TrainStep, 1, 1), (TrainStep, 4, 4), (Evaluation, 1, 2), (Evaluation, 3, 6)],
)
def test_a_stopped_run_is_saved_and_ends_as_one_that_was_not(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: type,
    number: int,
    stopped_at: int,
) -> None:
    run(task(save_interval_steps=5), data(), tmp_path / "whole")
    undo = signal_after(monkeypatch, place, number)
    said: list[str] = []
    assert run(task(save_interval_steps=5), data(), tmp_path / "run", said.append) == {}
    undo()
    told = rf"Stopped\b.*\bSIGTERM\b.*step {stopped_at}\b.*\bsaved\b"
    assert re.match(told, said[-1])
    assert steps_with_checkpoints(tmp_path / "run")[-1] == stopped_at
    run(task(save_interval_steps=5), data(), tmp_path / "run")
    assert saved_bytes(tmp_path / "run", STEPS) == saved_bytes(
        tmp_path / "whole", STEPS
    )
    files = [tmp_path / name / "metrics.jsonl" for name in ("run", "whole")]
    assert files[0].read_text() == files[1].read_text()


def test_the_best_checkpoint_is_kept(tmp_path: Path) -> None:
    wanted = {"best_metric": "-loss"}
    # A learning rate with which the loss grows.
    growing: dict[str, Any] = {
        "learning_rate": 3.0,
        "keep_checkpoints": 1,
        "save_interval_steps": 3,
    }
    run(task(wanted, **growing), data(), tmp_path)
    tests = {
        r["step"]: r["loss"] for r in read_metrics(tmp_path) if r["split"] == "test"
    }
    best = min(tests, key=tests.__getitem__)
    assert best < STEPS
    assert read_best_step(tmp_path / "best.json") == best
    assert steps_with_checkpoints(tmp_path) == [best, STEPS]


def test_training_stops_when_nothing_gets_better(tmp_path: Path) -> None:
    wanted = {"best_metric": "-loss", "patience": 1}
    growing: dict[str, Any] = {"learning_rate": 3.0, "save_interval_steps": 5}
    said: list[str] = []
    metrics = run(task(wanted, **growing), data(), tmp_path, said.append)
    records = read_metrics(tmp_path)
    tests = [r for r in records if r["split"] == "test"]
    assert tests[-1]["step"] < STEPS
    # Once the last one was made, written and counted twice.
    assert [r["step"] for r in tests] == list(range(2, tests[-1]["step"] + 1, 2))
    assert tests[-1]["loss"] >= tests[-2]["loss"]
    assert {**tests[-1], **metrics} == tests[-1]
    assert any(re.match(r"Stopped\b.*\b1\b.*-loss\b", line) for line in said)
    # The same command again has nothing to do, and says so.
    again = run(task(wanted, **growing), data(), tmp_path, said.append)
    assert again == metrics
    assert read_metrics(tmp_path) == records


def test_more_patience_later_is_as_if_it_had_been_there(tmp_path: Path) -> None:
    growing: dict[str, Any] = {"learning_rate": 3.0, "save_interval_steps": 5}
    for name, patience in [("parts", 1), ("parts", 2), ("whole", 2)]:
        wanted = {"best_metric": "-loss", "patience": patience}
        run(task(wanted, **growing), data(), tmp_path / name)
    texts = [(tmp_path / n / "metrics.jsonl").read_text() for n in ("parts", "whole")]
    assert texts[0] == texts[1]


def test_a_best_metric_that_comes_later_finds_a_checkpoint_that_is_there(
    tmp_path: Path,
) -> None:
    """Once the best was one whose checkpoint had been deleted long ago."""
    growing: dict[str, Any] = {
        "learning_rate": 3.0,
        "keep_checkpoints": 1,
        "save_interval_steps": 2,
    }
    run(task(**growing, max_steps=4), data(), tmp_path)
    assert steps_with_checkpoints(tmp_path) == [4]
    said: list[str] = []
    wanted = {"best_metric": "-loss"}
    run(task(wanted, **growing), data(), tmp_path, said.append)
    assert any(re.search(r"best\b.*step 2\b.*checkpoint", line) for line in said)
    best = read_best_step(tmp_path / "best.json")
    assert best in steps_with_checkpoints(tmp_path)
    # Without a metric none is the best.
    run(task(**growing), data(), tmp_path)
    assert read_best_step(tmp_path / "best.json") is None


def test_what_cannot_be_saved_is_not_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the line came before the checkpoint was written."""

    def fail(*_: Any) -> None:
        raise OSError("no room")

    monkeypatch.setattr(Checkpointer, "_write", fail)
    undo = signal_after(monkeypatch, TrainStep, 3)
    said: list[str] = []
    with pytest.raises(OSError, match="room"):
        run(task(save_interval_steps=5), data(), tmp_path, said.append)
    undo()
    assert not any("SIGTERM" in line for line in said)


def test_a_signal_while_the_last_checkpoint_is_written_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the handlers of the system were back by then."""
    original, main = Checkpointer._write, threading.main_thread()

    def write(self: Checkpointer, step: int, values: Any) -> None:
        if step == STEPS:
            signal.pthread_kill(main.ident or 0, signal.SIGTERM)
        original(self, step, values)

    monkeypatch.setattr(Checkpointer, "_write", write)
    run(task(save_interval_steps=5), data(), tmp_path)
    assert steps_with_checkpoints(tmp_path) == [5, 6]


def test_a_run_that_another_began_meanwhile_is_left_alone(tmp_path: Path) -> None:
    """Once the later of two trainers wrote over what the first had."""

    class Slow(Input):
        """Another trainer begins and ends while this one is being built."""

        def EvalBatches(self) -> Any:
            if not (tmp_path / "params.txt").exists():
                run(task(), data(), tmp_path)
            return super().EvalBatches()

    second = RunDirectory(tmp_path, "toy.Toy")
    with pytest.raises(ValueError, match=rf"another\b.*{tmp_path}\b.*--logdir"):
        train(task(), data(), Slow(batch(9)), second, "other : 1\n")
    assert RunDirectory(tmp_path, "toy.Toy").read_params() == PARAMS
    assert read_metrics(tmp_path)[-1]["step"] == STEPS


def test_a_metric_that_is_not_there_is_told_before_the_first_step(
    tmp_path: Path,
) -> None:
    with pytest.raises(ValueError, match=r"eval\.best_metric.*'f1'.*accuracy, loss"):
        run(task({"best_metric": "f1"}), data(), tmp_path)
    assert steps_with_checkpoints(tmp_path) == []


def test_a_second_trainer_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    run(task(), data(), tmp_path)
    before = (tmp_path / "params.txt").read_text()
    first = RunDirectory(tmp_path, "toy.Toy")
    first.lock()
    with pytest.raises(ValueError, match=rf"{tmp_path}\b.*\b{os.getpid()}\b"):
        train(task(), data(), data(), RunDirectory(tmp_path, "toy.Toy"), "other : 1\n")
    assert (tmp_path / "params.txt").read_text() == before
    first.unlock()
