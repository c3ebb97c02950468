"""A run killed between any two writes resumes and ends with the same files.

The run has all features that make files depend on one another: loss spikes with
roll-backs, skipped steps, and a best evaluation whose checkpoint is kept.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lingvo_pipe.training.checkpoint import checkpointer
from lingvo_pipe.training.checkpoint.checkpointer import Checkpointer
from lingvo_pipe.training.report import html_report
from lingvo_pipe.training.run import (
    best_evaluation,
    metrics_log,
    resume_record,
    run_directory,
)
from lingvo_pipe.training.run.metrics_log import MetricsLog
from lingvo_pipe.training.stability import skipped_batches
from tests.support.cases import exhaustive
from tests.training.injected_faults import KilledError, before_calls
from tests.training.toy_run import Input, batch, make_task, run, saved_bytes

STEPS = 10
SPIKES, NOT_FINITE = (6, 7), (4,)  # Numbers of batches.
FILES = ("metrics.jsonl", "best.json", "skipped_batches.json")


class Writes:
    """Counts writes, and kills the run before one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.names: list[str] = []
        self.last: float = float("inf")
        writes: list[tuple[Any, str]] = [
            (MetricsLog, "_write_line"),
            (MetricsLog, "_write_events"),
            (Checkpointer, "_delete"),
            (Path, "replace"),
        ]
        for module in (
            best_evaluation,
            checkpointer,
            html_report,
            metrics_log,
            resume_record,
            run_directory,
            skipped_batches,
        ):
            writes.append((module, "write_atomically"))
        for owner, name in writes:
            before_calls(monkeypatch, owner, name, functools.partial(self._note, name))

    def _note(self, name: str) -> None:
        if len(self.names) >= self.last:
            raise KilledError
        self.names.append(name)


def _train(logdir: Path) -> None:
    task = make_task(
        max_steps=STEPS,
        save_interval_steps=3,
        report_interval_steps=1,
        keep_checkpoints=1,
        loss_spike_factor=3.0,
        max_skipped_steps=1,
        learning_rate=0.3,
    )
    p = task.params.Copy()
    p.eval.Set(interval_steps=2, best_metric="loss")
    scales = dict.fromkeys(SPIKES, 10000.0) | dict.fromkeys(NOT_FINITE, np.nan)
    run(
        p.Instantiate(),
        Input(*(batch(n, scales.get(n, 1.0)) for n in range(2 * STEPS))),
        logdir,
    )


def _content(logdir: Path) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: (logdir / name).read_text() if (logdir / name).exists() else None
        for name in FILES
    }
    found["variables"] = saved_bytes(logdir, STEPS)
    return found


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Writes:
    return Writes(monkeypatch)


@pytest.mark.parametrize("every", [43, exhaustive(2)])
def test_a_killed_run_ends_like_an_uninterrupted_one(
    tmp_path: Path, writes: Writes, every: int
) -> None:
    """The run is killed before each n-th write; `every` is n."""
    _train(tmp_path / "whole")
    whole, names = _content(tmp_path / "whole"), list(writes.names)
    assert len(json.loads(whole["skipped_batches.json"])) >= 1
    assert json.loads(whole["best.json"])["step"] < STEPS
    assert {"_write_line", "_delete", "replace"} <= set(names)
    moments = range(every // 2, len(names), every)
    assert len(moments) > 1
    for moment in moments:
        logdir = tmp_path / str(moment)
        writes.names, writes.last = [], moment
        with pytest.raises(KilledError):
            _train(logdir)
        writes.last = float("inf")
        _train(logdir)
        got = _content(logdir)
        for name, expected in whole.items():
            assert got[name] == expected, (
                f"{name}, killed before {names[moment]} {moment}"
            )
