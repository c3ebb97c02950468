"""Checkpoints are due by steps and by the clock. A request waits for those steps."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from lingvo_pipe.training.checkpoint.checkpointer import Checkpointer
from lingvo_pipe.training.loop.batches import BatchGroups
from lingvo_pipe.training.loop.save_times import SaveRequest, SaveTimes
from lingvo_pipe.training.task.task_params import train_params
from tests.training.toy_run import STEPS, Input, batch, make_task, run

PATIENCE = 60.0  # Seconds, on a busy machine.


def test_a_checkpoint_is_due_when_seconds_have_passed_since_the_last() -> None:
    now = 50.0
    p = train_params().Set(save_interval_steps=100, save_interval_seconds=9.0)
    saves = SaveTimes(p, SaveRequest(), lambda: now)
    now = 58.0
    assert not saves.is_due(1)
    assert saves.is_due(100)
    now = 59.0
    assert saves.is_due(1)
    saves.restart_clock()
    assert not saves.is_due(2)
    now = 68.0
    assert saves.is_due(2)
    p.save_interval_seconds = None
    assert not SaveTimes(p, SaveRequest(), lambda: 0.0).is_due(1)


def test_a_worker_stays_while_the_next_batch_is_awaited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run would train on that batch after the worker was let go."""
    request, answers = SaveRequest(patience=0.0), list[bool]()
    original = BatchGroups.next

    def asking(self: BatchGroups, *args: Any) -> Any:
        answers.append(request.ask())
        return original(self, *args)

    monkeypatch.setattr(BatchGroups, "next", asking)
    run(make_task(), Input(*map(batch, range(STEPS))), tmp_path, save_request=request)
    assert answers == [False] * STEPS


def test_a_worker_stays_until_the_last_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing may not have begun when the run evaluates its last step."""
    request, answers = SaveRequest(patience=0.0), list[bool]()
    original = Checkpointer._delete_remains

    def asking(self: Checkpointer) -> None:
        end = time.monotonic() + PATIENCE
        while not request.is_saved and time.monotonic() < end:
            time.sleep(0.01)
        answers.append(request.ask())
        original(self)

    monkeypatch.setattr(Checkpointer, "_delete_remains", asking)
    task = make_task(save_interval_steps=2 * STEPS)
    run(task, Input(*map(batch, range(STEPS))), tmp_path, save_request=request)
    assert answers == [False]
    assert request.ask()


def test_a_run_waits_for_the_restart_that_it_has_saved_for() -> None:
    request, answers = SaveRequest(patience=99.0), iter([False, False, True])
    assert request.ask()  # Before the first step nothing is lost.
    request.is_saved = False
    assert not request.ask()
    request.wait_for_restart(lambda: next(answers))
    assert [*answers] == []
    assert not request.is_asked
