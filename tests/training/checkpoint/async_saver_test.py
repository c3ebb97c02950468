"""Saving while training continues saves the state of the requested step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
import tensorflow as tf

from lingvo_pipe.training.checkpoint.async_saver import AsyncSaver
from lingvo_pipe.training.checkpoint.checkpointer import Checkpointer
from tests.support.errors import fails

Variables: TypeAlias = dict[str, tf.Variable]


@pytest.fixture
def variables() -> Variables:
    return {"a/w": tf.Variable(tf.ones([50, 20])), "a/b": tf.Variable([1.0, 1.0])}


class Gate:
    """A gate that a checkpointer's writing waits for."""

    def __init__(self, checkpointer: Checkpointer, monkeypatch: pytest.MonkeyPatch):
        self.opened = threading.Event()
        write = checkpointer._write

        def waiting(*args: object) -> None:
            assert self.opened.wait(300)
            write(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(checkpointer, "_write", waiting)


def test_updates_while_saving_are_not_saved(
    tmp_path: Path, variables: Variables, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpointer = Checkpointer(tmp_path, variables)
    gate = Gate(checkpointer, monkeypatch)
    with AsyncSaver(checkpointer, pytest.fail) as saver:
        saver.save(3)
        for variable in variables.values():  # As optimizers do.
            variable.assign_sub(tf.ones(variable.shape))
            variable.assign(variable * 2.0 + 7.0)
            tf.raw_ops.ResourceApplyGradientDescent(
                var=variable.handle, alpha=1.0, delta=tf.ones(variable.shape)
            )
        variables["a/w"].scatter_nd_update([[0, 0]], [100.0])
        assert checkpointer.saved_steps() == []
        waiting = threading.Thread(target=saver.wait)
        waiting.start()
        waiting.join(0.1)
        assert saver.is_writing()  # Also for a thread beside one that waits.
        gate.opened.set()
        waiting.join()
        assert not saver.is_writing()
    assert Checkpointer(tmp_path, variables).restore() == 3
    for variable in variables.values():
        assert (variable.numpy() == 1.0).all()


def test_states_are_saved_in_order(tmp_path: Path, variables: Variables) -> None:
    checkpointer = Checkpointer(tmp_path, variables)
    with AsyncSaver(checkpointer, pytest.fail) as saver:
        for step in range(1, 4):
            variables["a/b"].assign([step, step])
            saver.save(step)
    assert checkpointer.saved_steps() == [1, 2, 3]
    assert Checkpointer(tmp_path, variables).restore() == 3
    assert variables["a/b"].numpy().tolist() == [3.0, 3.0]


@pytest.mark.parametrize("call", [lambda saver: saver.save(6), AsyncSaver.close])
def test_the_next_call_raises_the_error(
    tmp_path: Path, variables: Variables, call: Callable[[AsyncSaver], None]
) -> None:
    saver = AsyncSaver(Checkpointer(tmp_path, variables), pytest.fail)
    saver.save(5)
    saver.save(4)
    with fails(path="step", got=4):
        call(saver)
    saver.close()


def test_a_failure_of_training_comes_first_and_loses_nothing(
    tmp_path: Path, variables: Variables, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpointer = Checkpointer(tmp_path, variables)
    gate = Gate(checkpointer, monkeypatch)

    def fail_while_saving() -> None:
        with AsyncSaver(checkpointer, pytest.fail) as saver:
            saver.save(1)
            wait = saver.wait

            def open_and_wait() -> None:
                gate.opened.set()
                wait()

            monkeypatch.setattr(saver, "wait", open_and_wait)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail_while_saving()
    assert checkpointer.saved_steps() == [1]


def test_if_training_failed_too_the_error_is_logged(
    tmp_path: Path, variables: Variables
) -> None:
    logged: list[str] = []

    def fail() -> None:
        with AsyncSaver(Checkpointer(tmp_path, variables), logged.append) as saver:
            saver.save(5)
            saver.save(4)
            raise KeyError("training")

    with pytest.raises(KeyError, match="training"):
        fail()
    (line,) = logged
    assert "step: expected at least 5" in line


def test_a_new_pinned_checkpoint_exists_before_the_old_is_deleted(
    tmp_path: Path, variables: Variables
) -> None:
    checkpointer = Checkpointer(tmp_path, variables, keep=1)
    there: list[list[int]] = []
    with AsyncSaver(checkpointer, pytest.fail) as saver:
        for step in (1, 2):
            saver.save(step, step, lambda: there.append(checkpointer.saved_steps()))
    assert there == [[1], [1, 2]]
    assert checkpointer.saved_steps() == [2]


def test_the_pinned_checkpoint_stays(tmp_path: Path, variables: Variables) -> None:
    checkpointer = Checkpointer(tmp_path, variables, keep=2)
    with AsyncSaver(checkpointer, pytest.fail) as saver:
        for step in range(1, 9):
            saver.save(step, pinned=2 if step < 4 else 4)
    assert checkpointer.saved_steps() == [4, 7, 8]
