"""Evaluations by another process equal the trainer's own."""

from __future__ import annotations

import errno
import functools
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.core.errors import UserDamageError
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.checkpoint.async_saver import AsyncSaver
from lingvo_pipe.training.checkpoint.checkpointer import Checkpointer
from lingvo_pipe.training.eval import run_weights
from lingvo_pipe.training.eval.evaluation import Evaluation
from lingvo_pipe.training.eval.run_evaluations import RunEvaluations, evaluate_run
from lingvo_pipe.training.eval.run_weights import open_run, weights_in_turn
from lingvo_pipe.training.loop.training_loop import train
from lingvo_pipe.training.run.best_evaluation import read_best
from lingvo_pipe.training.run.metrics_log import MetricsLog, read_metrics
from lingvo_pipe.training.run.run_directory import RunDirectory
from lingvo_pipe.training.task.base_task import BaseTask
from tests.support.cases import exhaustive
from tests.support.errors import fails
from tests.training.toy_run import Input, batch, make_task

STEPS = 6


def task(**eval_params: Any) -> BaseTask:
    p = make_task(max_steps=STEPS, ema_decay=0.9).params.Copy()
    p.eval.Set(**eval_params)
    return p.Instantiate()


evaluated_task = functools.cache(task)  # Its weights are read before each evaluation.


def train_toy(
    logdir: Path,
    test: Input | None = None,
    log: Callable[[str], None] = lambda line: None,
    **eval_params: Any,
) -> None:
    data, test = Input(*map(batch, range(STEPS))), test or Input(batch(9))
    directory = RunDirectory(logdir, "toy.Toy")
    params = f"task.train.max_steps : {STEPS}\n"
    train(task(**eval_params), data, test, directory, params, log)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    logdir = tmp_path_factory.mktemp("runs") / "finished"
    train_toy(logdir, interval_steps=3)
    return logdir


@pytest.fixture
def logdir(finished: Path, tmp_path: Path) -> Path:
    """A finished run, evaluated after each three steps."""
    return shutil.copytree(finished, tmp_path / "run")


def evaluate_in(
    directory: RunDirectory,
    data: Any,
    split: str = "test",
    checkpoint: str | None = None,
    follow_seconds: float | None = None,
) -> None:
    model, log = evaluated_task(), lambda _: None
    steps = weights_in_turn(model, directory, checkpoint, follow_seconds, log)
    evaluate_run(model, data, directory, split, steps, log)


def evaluate(logdir: Path, split: str = "test", **arguments: Any) -> list[Any]:
    directory = open_run(logdir, "toy.Toy", arguments.get("follow_seconds"))
    data = Input(batch(9)) if split == "test" else Input(batch(3))
    evaluate_in(directory, data, split, **arguments)
    return read_metrics(logdir / "evaler")


def logged_tests(logdir: Path) -> list[dict[str, Any]]:
    return [line for line in read_metrics(logdir) if line["split"] == "test"]


def test_each_checkpoint_is_evaluated_as_the_trainer_does(logdir: Path) -> None:
    """With the averages of the weights."""
    report = logdir / "report.html"
    report.unlink()
    evaluate(logdir, checkpoint="ckpt-00000003")
    assert "test, evaler" in report.read_text()
    found = evaluate(logdir)
    assert found == logged_tests(logdir)
    assert [line["step"] for line in found] == [3, STEPS]
    assert evaluate(logdir) == found  # Nothing is logged twice.
    assert evaluate(logdir, "dev")[-1]["split"] == "dev"


def test_checkpoints_are_evaluated_as_they_are_restored(logdir: Path) -> None:
    directory, model = open_run(logdir, "toy.Toy"), evaluated_task()

    def restored() -> Iterator[int]:
        for step in (3, STEPS):
            name = f"ckpt-{step:08d}"
            yield from weights_in_turn(model, directory, name, None, lambda _: None)

    evaluate_run(model, Input(batch(9)), directory, "test", restored(), lambda _: None)
    assert read_metrics(logdir / "evaler") == logged_tests(logdir)


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """A run of which all evaluations are compared, and what a follower found."""
    logdir = tmp_path_factory.mktemp("runs") / "followed"
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(evaluate, logdir, follow_seconds=300)
        train_toy(logdir, interval_steps=1, best_metric="-loss")
        return logdir, following.result()


def test_a_running_trainer_is_followed_to_its_end(
    followed: tuple[Path, list[Any]],
) -> None:
    logdir, found = followed
    assert found[-1]["step"] == STEPS
    expected = logged_tests(logdir)
    assert all(line in expected for line in found)


def test_the_best_is_found(tmp_path: Path, followed: tuple[Path, list[Any]]) -> None:
    logdir = shutil.copytree(followed[0], tmp_path / "run")
    shutil.rmtree(logdir / "evaler")
    losses = {line["step"]: line["loss"] for line in logged_tests(logdir)}
    (found,) = evaluate(logdir, checkpoint="best")
    best_path = logdir / "best.json"
    best = read_best(best_path)
    best_path.write_text(json.dumps(best | {"step": best["step"] ^ 1}))
    with fails(UserDamageError, path=str(best_path)):  # Another was used once.
        evaluate(logdir, checkpoint="best")
    assert found["loss"] == min(losses.values())
    assert losses[found["step"]] == found["loss"]


@pytest.mark.parametrize("when", [exhaustive("at a resumption"), "at the end"])
def test_a_best_that_cannot_be_read_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """It was still named as the best, and --checkpoint=best failed."""
    logged: list[str] = []

    def damage() -> int:
        best: int = read_best(tmp_path / "best.json")["step"]
        data = tmp_path / "checkpoints" / f"ckpt-{best:08d}.data-00000-of-00001"
        data.write_bytes(b"")
        return best

    # The largest loss is an early one's.
    settings: dict[str, Any] = {"interval_steps": 1, "best_metric": "loss"}
    if when == "at the end":
        wait = AsyncSaver.wait
        damaged: list[int] = []

        def then_damage(saver: AsyncSaver) -> None:
            wait(saver)
            last = tmp_path / f"checkpoints/ckpt-{STEPS:08d}.index"
            if last.exists() and not damaged:
                damaged.append(damage())

        monkeypatch.setattr(AsyncSaver, "wait", then_damage)
        train_toy(tmp_path, log=logged.append, **settings)
        (best,) = damaged
    else:
        train_toy(tmp_path, **settings)
        best = damage()
        train_toy(tmp_path, log=logged.append, **settings)
    assert any(f"step {best}," in line for line in logged)
    other = read_best(tmp_path / "best.json")["step"]
    assert other != best
    directory = open_run(tmp_path, "toy.Toy")
    assert [*weights_in_turn(task(), directory, "best", None, logged.append)] == [other]


def test_outputs_that_do_not_depend_on_the_input_are_warned_of_once(
    tmp_path: Path,
) -> None:
    model, logged = evaluated_task(), list[str]()
    same = Input(*(batch(seed, scale=0.0) for seed in range(5)))
    directory = RunDirectory(tmp_path / "run", "toy.Toy")
    with MetricsLog(directory.path) as metrics_log:
        evaluations = RunEvaluations(
            model,
            Evaluation(model),
            same,
            directory,
            metrics_log,
            logged.append,
            Checkpointer(directory.checkpoints_path, {}),
            is_stopping=lambda: False,
        )
        for step in (0, 100, 200):
            evaluations.evaluate(step)
    warnings = [i for i, line in enumerate(logged) if line.startswith("warning: acc")]
    assert warnings == [2]
    assert "task.train.learning_rate" in logged[2]


def test_a_run_without_a_best_is_refused(finished: Path) -> None:
    with fails(path="--checkpoint", got="best"):
        evaluate(finished, checkpoint="best")


def test_a_run_that_has_not_started_is_refused(tmp_path: Path) -> None:
    for seconds in (None, 0.1):
        with fails(path="--logdir", got=f"{tmp_path}/none"):
            open_run(tmp_path / "none", "toy.Toy", seconds)


def test_a_run_that_lost_its_params_is_damaged(logdir: Path) -> None:
    (logdir / "params.txt").unlink()
    with fails(UserDamageError, path=f"{logdir}/params.txt"):
        open_run(logdir, "toy.Toy")


def test_simultaneous_evaluations_lose_nothing(logdir: Path) -> None:
    """One evaluates while the other begins and ends."""

    class CallingInput(Input):
        def EvalBatches(self) -> Any:
            data_set = super().EvalBatches()

            def batches() -> Iterator[NestedMap]:
                evaluate(logdir, "dev")
                yield from data_set

            spec = data_set.element_spec
            return tf.data.Dataset.from_generator(batches, output_signature=spec)

    evaluate_in(open_run(logdir, "toy.Toy"), CallingInput(batch(9)))
    lines = read_metrics(logdir / "evaler")
    assert [line["split"] for line in lines] == ["dev", "test"]


@pytest.mark.exhaustive
def test_each_evaluation_reads_the_same_data_set(tmp_path: Path) -> None:
    """TensorFlow kept 100 KiB of each that was made."""

    class CountingInput(Input):
        num_made = 0

        def EvalBatches(self) -> Any:
            self.num_made += 1
            return super().EvalBatches()

    test = CountingInput(batch(9))
    train_toy(tmp_path, test, interval_steps=1)
    assert len(logged_tests(tmp_path)) == STEPS
    assert test.num_made == 2  # One of them for the specs.
    directory, log = RunDirectory(tmp_path, "toy.Toy"), lambda _: None
    evaluate_run(evaluated_task(), test, directory, "test", range(STEPS), log)
    assert test.num_made == 3


def test_nan_is_logged_once(logdir: Path) -> None:
    directory = open_run(logdir, "toy.Toy")
    data = Input(batch(9, scale=math.nan))
    for _ in range(2):
        evaluate_in(directory, data)
    (line,) = read_metrics(logdir / "evaler")
    assert math.isnan(line["loss"])


def test_a_trainer_that_saves_nothing_is_reported(tmp_path: Path) -> None:
    RunDirectory(tmp_path, "toy.Toy").write_params("task.train.max_steps : 6\n")
    with fails(path=f"{tmp_path}/checkpoints", got="none"):
        evaluate(tmp_path, follow_seconds=0.1)


@pytest.mark.parametrize("name", ["steps_in", "restore_weights"])
def test_a_disk_that_cannot_be_read_now_is_waited_for(
    finished: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Once a time-out of NFS ended a job that followed a run."""
    read, numbers = getattr(run_weights, name), [errno.EIO, errno.ESTALE]

    def fail_twice(*arguments: Any) -> Any:
        if numbers:
            raise OSError(number := numbers.pop(), os.strerror(number), "a file")
        return read(*arguments)

    monkeypatch.setattr(run_weights, name, fail_twice)
    monkeypatch.setattr(run_weights, "_POLL_SECONDS", 0.0)
    directory, model = open_run(finished, "toy.Toy"), evaluated_task()

    def follow(seconds: float) -> tuple[list[int], list[str]]:
        lines: list[str] = []
        return [*weights_in_turn(model, directory, None, seconds, lines.append)], lines

    steps, (line,) = follow(60)
    assert steps == [STEPS]
    assert "a file" in line
    for number in (errno.EIO, errno.EMFILE):
        numbers.append(number)
        with pytest.raises(OSError, match="a file"):
            follow(0 if number == errno.EIO else 60)


def test_a_trainer_that_ends_early_is_reported(logdir: Path) -> None:
    for last, num_lines in ((STEPS, 0), (STEPS + 1, 1)):
        directory, lines = open_run(logdir, "toy.Toy"), list[str]()
        directory.write_params(f"task.train.max_steps : {last}\n")
        steps = weights_in_turn(evaluated_task(), directory, None, 0.1, lines.append)
        assert list(steps) == [STEPS]
        assert len(lines) == num_lines
        expected = rf"Followed\b.*step {STEPS}\b.*\b0\.1\b.*\b{last}\b"
        assert all(re.match(expected, line) for line in lines)
