"""A run that rolls back ends in the same bytes, whatever interrupts it."""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lingvo_pipe.training.checkpoint.checkpointer import Checkpointer
from lingvo_pipe.training.run.metrics_log import read_metrics
from lingvo_pipe.training.run.run_parts import read_parts
from lingvo_pipe.training.step.train_step import TrainStep
from tests.training.injected_faults import before_calls, empty
from tests.training.toy_run import Input, batch, make_task, run, saved_bytes

# A step with large images spoils the weights.
STEPS, SPIKE, SAVED = 12, 8, 6
DATA = Input(*[batch(n, 1e3 if n == SPIKE - 1 else 1.0) for n in range(STEPS + 10)])


def _run(
    logdir: Path, log: Callable[[str], None] | None = None, data: Input = DATA
) -> None:
    task = make_task(
        max_steps=STEPS,
        save_interval_steps=SAVED,
        report_interval_steps=1,
        loss_spike_factor=4.0,
    )
    run(task, data, logdir, log)


def _content(logdir: Path) -> list[Any]:
    names = "metrics.jsonl", "skipped_batches.json"
    return [
        saved_bytes(logdir, STEPS),
        *((logdir / name).read_text() for name in names),
    ]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The directory and the log of a run that nothing has interrupted."""
    logdir, logged = tmp_path_factory.mktemp("runs") / "finished", list[str]()
    _run(logdir, logged.append)
    return logdir, logged


@pytest.fixture(scope="module")
def whole(finished: tuple[Path, list[str]]) -> list[Any]:
    return _content(finished[0])


def test_a_run_rolls_back_before_a_spike_and_skips_the_batches(
    tmp_path: Path, finished: tuple[Path, list[str]], whole: list[Any]
) -> None:
    logdir, logged = finished
    assert any(re.match(r"Rolled back\b.*step 6\b.*step 8\b", line) for line in logged)
    file = logdir / "skipped_batches.json"
    assert json.loads(file.read_text()) == [{"after_step": 6, "num_batches": 2}]
    trained = [r["step"] for r in read_metrics(logdir) if r["split"] == "train"]
    assert trained == list(range(1, STEPS + 1))

    # A run without these batches is the same.
    kept = [batch(n) for n in range(STEPS + 10) if n not in (6, 7)]
    _run(tmp_path, data=Input(*kept))
    variables, metrics, _ = whole
    assert saved_bytes(tmp_path, STEPS) == variables
    assert (tmp_path / "metrics.jsonl").read_text() == metrics


def test_a_signal_before_a_spike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: list[Any]
) -> None:
    """Its step was once saved, and the run rolled back to there."""
    calls = iter(range(1, 1000))

    def interrupt() -> None:
        if next(calls) == SPIKE - 1:
            signal.raise_signal(signal.SIGTERM)

    before_calls(monkeypatch, TrainStep, "__call__", interrupt)
    logged: list[str] = []
    _run(tmp_path, logged.append)
    assert f"after step {SPIKE - 1}, which is not saved" in logged[-1]
    assert logged[-1].endswith(f"resumes from step {SAVED}.")
    assert read_parts(tmp_path / "parts.json")[-1].has_stopped
    monkeypatch.undo()
    _run(tmp_path)
    assert _content(tmp_path) == whole


def test_a_checkpoint_that_cannot_be_written_before_a_spike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: list[Any]
) -> None:
    """The run once rolled back to an earlier one, and went on."""
    write = Checkpointer._write

    def fail(self: Checkpointer, step: int, values: Any) -> None:
        if step:
            raise OSError("no space")
        write(self, step, values)

    monkeypatch.setattr(Checkpointer, "_write", fail)
    with pytest.raises(OSError, match="no space"):
        _run(tmp_path)
    assert not (tmp_path / "skipped_batches.json").exists()
    monkeypatch.undo()
    _run(tmp_path)
    assert _content(tmp_path) == whole


def test_a_damaged_checkpoint_after_a_roll_back(
    tmp_path: Path, finished: tuple[Path, list[str]], whole: list[Any]
) -> None:
    """The batches that were skipped after it stay skipped."""
    logdir = shutil.copytree(finished[0], tmp_path / "run")
    for path in logdir.glob(f"checkpoints/ckpt-{STEPS:08d}.*"):
        path.unlink()  # As if killed after the roll-back.
    skipped = [{"after_step": SAVED, "num_batches": SPIKE - SAVED}]
    assert json.loads((logdir / "skipped_batches.json").read_text()) == skipped
    empty(logdir / f"checkpoints/ckpt-{SAVED:08d}.index")
    logged: list[str] = []
    _run(logdir, logged.append)
    assert "Resumed from step 0." in logged
    assert _content(logdir) == whole
