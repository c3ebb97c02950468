"""A run with every kind of file, and the jobs that open it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from lingvo_pipe.core.error_text import user_message
from lingvo_pipe.serving.export import export_model
from lingvo_pipe.training.decode import decoder_run
from lingvo_pipe.training.eval.run_evaluations import evaluate_run
from lingvo_pipe.training.eval.run_weights import open_run, weights_in_turn
from lingvo_pipe.training.loop.training_loop import train
from lingvo_pipe.training.report import html_report
from lingvo_pipe.training.run.run_directory import RunDirectory
from lingvo_pipe.training.run.run_vocabulary import check_vocabulary
from lingvo_pipe.training.task.base_task import BaseTask
from tests.training.decoder_examples import Letters, translation
from tests.training.toy_run import STEPS, Input, batch, make_task

NAME = "toy.Toy"
PARAMS = (
    f"task.name : 'task'\ntask.train.max_steps : {STEPS}\n"
    "task.eval.best_metric : 'loss'\n"
)
SKIPPED = '[{"after_step": 1, "num_batches": 1}]\n'
SCORES = [translation("the cat sat on a mat .", "the cat sat on the mat .")]


class WordsInput(Input):
    """An input with a vocabulary."""

    vocabulary = Letters()


for _name in ("fingerprint", "path"):
    setattr(WordsInput.vocabulary, _name, "letters")

TRAIN, TEST = WordsInput(*map(batch, range(STEPS + 2))), WordsInput(batch(9))


def train_toy(
    logdir: Path, log: Callable[[str], None] = lambda _: None, max_steps: int = STEPS
) -> None:
    p = make_task(max_steps=max_steps).params.Copy()
    p.eval.Set(interval_steps=1, best_metric="loss")
    train(p.Instantiate(), TRAIN, TEST, RunDirectory(logdir, NAME), PARAMS, log)


@functools.cache
def plain_task() -> BaseTask:
    return make_task()


def evaluate(logdir: Path) -> None:
    directory = open_run(logdir, NAME)
    directory.read_params()
    steps = weights_in_turn(plain_task(), directory, "best", None, print)
    evaluate_run(plain_task(), TEST, directory, "test", steps, print)


def decode(logdir: Path) -> None:
    directory = open_run(logdir, NAME)
    directory.read_params()
    check_vocabulary(directory.path, TEST)
    for step in weights_in_turn(plain_task(), directory, None, 0.3, print):
        decoder_run.write_report(directory.decoder_path, step, "test", SCORES)


def export(logdir: Path) -> None:
    directory = open_run(logdir, NAME)
    directory.read_params()
    check_vocabulary(directory.path, TEST)
    for step in weights_in_turn(plain_task(), directory, None, None, print):
        data = TEST.EvalBatches()
        export_model(plain_task(), data, directory.export_path / str(step))


def report(logdir: Path) -> None:
    html_report.write_report(open_run(logdir, None))


JOBS: list[Callable[[Path], None]] = [train_toy, evaluate, decode, export, report]


def write_whole_run(logdir: Path) -> None:
    """Trains and runs every job; writes what seldom lies in a run besides."""
    directory = RunDirectory(logdir, NAME)
    train_toy(logdir, max_steps=1)
    directory.skipped_batches_path.write_text(SKIPPED)
    for job in JOBS:
        job(logdir)
    directory.profile_path.mkdir()
    for ending in ("png", "txt"):
        (directory.profile_path / f"step-3.{ending}").write_text("title\n\na  b\n")
    for name in ("traceback.txt", ".params.txt.incomplete"):
        (logdir / name).write_text("left")


def problem_of(job: Callable[[Path], None], logdir: Path) -> str:
    """Returns the line of a job's error, "" if it has none."""
    try:
        job(logdir)
    except Exception as error:
        line = user_message(error)
        if line is None:
            raise
        is_change = line.startswith("Cannot resume: ")  # It has a line for each param.
        assert is_change or "\n" not in line
        assert len(line) < 1000
        return line
    return ""
