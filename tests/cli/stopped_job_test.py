"""A job that a signal has stopped says so by its exit code."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from lingvo_pipe.cli import main, train_job
from lingvo_pipe.cli.error_output import STOPPED_CODE
from lingvo_pipe.cli.flags import FLAGS
from lingvo_pipe.cli.model_request import ModelRequest
from tests.support.command_line import CommandLine

PATIENCE = 300.0  # Seconds, on a busy machine.


def test_a_run_that_is_not_finished_has_a_code_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else whoever restarts processes, such as Kubernetes, would take it for done."""
    FLAGS.mark_as_parsed()
    request = ModelRequest("mine.Model")
    monkeypatch.setattr(train_job, "train_model", lambda *unused: True)
    main._dispatch(request)
    monkeypatch.setattr(train_job, "train_model", lambda *unused: False)
    with pytest.raises(SystemExit) as end:
        main._dispatch(request)
    assert end.value.code == STOPPED_CODE


@pytest.fixture
def _no_signal_ends_this_process() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, lambda *unused: None)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("_no_signal_ends_this_process")
def test_a_task_that_still_finds_its_cluster_ends_when_asked_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A scheduler may take minutes to answer. Workers wait for it, too."""
    FLAGS.mark_as_parsed()
    monkeypatch.setattr(main.logging, "set_verbosity", lambda level: None)
    monkeypatch.setattr(
        main, "resolve_membership", lambda: signal.raise_signal(signal.SIGTERM)
    )
    with pytest.raises(SystemExit) as end:
        main.main(["trainer"])
    assert end.value.code == 128 + signal.SIGTERM


def test_a_trainer_that_still_starts_ends_when_asked_to(tmp_path: Path) -> None:
    """By a handler: a container's first process has no default that ends it."""
    program = "import time\nprint('It starts.')\ntime.sleep(600)\n"
    (tmp_path / "slow_to_import.py").write_text(program)
    flags = ("--model=mine.Model", "--model_imports=slow_to_import", "--logdir=run")
    with CommandLine(tmp_path).start_trainer(*flags) as trainer:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == "It starts.\n"
        trainer.send_signal(signal.SIGTERM)
        assert trainer.wait(PATIENCE) == 128 + signal.SIGTERM
