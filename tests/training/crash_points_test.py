"""Wherever between two writes a run is killed, it goes on to the same files.

The run has all that makes files depend on one another: spikes of the loss that it goes
back before, steps that are skipped, a best evaluation whose checkpoint is kept.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lingvo_pipe.training import (
    best_evaluation,
    checkpoints,
    metrics_log,
    run_directory,
    skipped_batches,
)
from lingvo_pipe.training.checkpoints import Checkpointer
from lingvo_pipe.training.metrics_log import MetricsLog
from lingvo_pipe.training.report import html_report
from tests.support.cases import exhaustive
from tests.training.stand_before import stand_before
from tests.training.toy_run import Input, batch, make_task, run, saved_bytes

STEPS = 10
SPIKES, NOT_FINITE = (6, 7), (4,)  # Numbers of batches.
FILES = ("metrics.jsonl", "best.json", "skipped_batches.json")


class Killed(BaseException):
    """No handler of errors sees it, as none sees a kill."""


class Writes:
    """Counts what is written, and ends the run before one of the writes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.names: list[str] = []
        self.last: float = float("inf")
        for module in (
            best_evaluation,
            checkpoints,
            html_report,
            metrics_log,
            run_directory,
            skipped_batches,
        ):
            self._count(monkeypatch, module, "write_atomically")
        self._count(monkeypatch, MetricsLog, "_write_line")
        self._count(monkeypatch, MetricsLog, "_write_events")
        self._count(monkeypatch, Checkpointer, "_delete")
        self._count(monkeypatch, Path, "replace")

    def _count(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        stand_before(monkeypatch, owner, name, functools.partial(self._note, name))

    def _note(self, name: str) -> None:
        if len(self.names) >= self.last:
            raise Killed
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
    p.eval.Set(interval_steps=2, best_metric="loss", pictures=False)
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


@pytest.mark.parametrize("every", [29, exhaustive(1)])
def test_a_run_that_was_killed_ends_as_one_that_was_not(
    tmp_path: Path, writes: Writes, every: int
) -> None:
    """Kills it before each n-th write, n being `every`."""
    _train(tmp_path / "whole")
    whole, names = _content(tmp_path / "whole"), list(writes.names)
    assert len(json.loads(whole["skipped_batches.json"])) >= 1
    assert json.loads(whole["best.json"])["step"] < STEPS
    assert {"_write_line", "_delete", "replace"} <= set(names)
    for moment in range(len(names))[::every]:
        logdir = tmp_path / str(moment)
        writes.names, writes.last = [], moment
        with pytest.raises(Killed):
            _train(logdir)
        writes.last = float("inf")
        _train(logdir)
        got = _content(logdir)
        for name, want in whole.items():
            assert got[name] == want, f"{name}, killed before {names[moment]} {moment}"
