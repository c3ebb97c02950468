"""Checkpoints survive round trips, damage and kills; other models' are rejected."""

import contextlib
import itertools
import multiprocessing
import os
import pathlib
import re
import shutil
import time

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.core.errors import UserDamageError
from lingvo_pipe.training.checkpoint import checkpointer as checkpointer_module
from lingvo_pipe.training.checkpoint.checkpointer import Checkpointer
from tests.support.errors import fails
from tests.training.injected_faults import KilledError, empty, flip, remove, truncate

NAMES = ("task/stem/conv/w", "task/stem.0/b", "learner/moment.Size", "skipped_steps")


def make_variables(value=0):
    """Returns variables of several shapes and dtypes, filled with `value`."""
    shapes: tuple[list[int], ...] = ([3, 4], [5], [2, 2], [])
    dtypes = (tf.float32, tf.bfloat16, tf.float64, tf.int64)
    return {
        name: tf.Variable(tf.cast(tf.fill(shape, value), dtype))
        for name, shape, dtype in zip(NAMES, shapes, dtypes, strict=True)
    }


def assign(variables, value):
    for variable in variables.values():
        variable.assign(tf.cast(tf.fill(variable.shape, value), variable.dtype))


def values_of(variables):
    """Returns the distinct values in all variables."""
    flat = [
        variable.numpy().astype(np.float64).ravel() for variable in variables.values()
    ]
    return set(np.concatenate(flat).tolist())


@pytest.fixture
def saved(tmp_path):
    """A directory with checkpoints 1 and 2, whose variables hold their step."""
    variables = make_variables()
    checkpointer = Checkpointer(tmp_path, variables)
    for step in (1, 2):
        assign(variables, step)
        checkpointer.save(step)
    return tmp_path


def test_restores_into_other_objects(saved):
    variables = make_variables()
    assert Checkpointer(saved, variables).restore() == 2
    assert values_of(variables) == {2}


def test_nothing_saved_restores_nothing(tmp_path):
    variables = make_variables(7)
    assert Checkpointer(tmp_path / "new", variables).restore() is None
    assert values_of(variables) == {7}


def test_variables_are_stored_under_their_names(saved):
    path = str(saved / "ckpt-00000002")
    stored = {name: tuple(shape) for name, shape in tf.train.list_variables(path)}
    assert stored == {n: tuple(v.shape) for n, v in make_variables().items()}
    assert np.all(tf.train.load_variable(path, "task/stem/conv/w") == 2)


def test_tensorflow_finds_the_newest_checkpoint(saved):
    assert tf.train.latest_checkpoint(str(saved)) == str(saved / "ckpt-00000002")


@pytest.mark.parametrize("keep", [1, 3])
def test_keeps_the_last_checkpoints(tmp_path, keep):
    checkpointer = Checkpointer(tmp_path, make_variables(), keep=keep)
    for step in range(10, 60, 10):
        checkpointer.save(step)
    assert checkpointer.saved_steps() == [10, 20, 30, 40, 50][-keep:]
    # There are index and data of each, and TensorFlow's state, only.
    assert len(os.listdir(tmp_path)) == 2 * keep + 1


def test_an_index_is_deleted_before_its_data(tmp_path, monkeypatch):
    """A kill in between would leave a checkpoint without data."""
    deleted = []
    delete = checkpointer_module.remove

    def note(path):
        deleted.append(path.name)
        delete(path)

    monkeypatch.setattr(checkpointer_module, "remove", note)
    checkpointer = Checkpointer(tmp_path, make_variables(), keep=1)
    for step in (1, 2):
        checkpointer.save(step)
    of_first = [name for name in deleted if name.startswith("ckpt-00000001")]
    assert [name.split(".")[1][:4] for name in of_first] == ["inde", "data"]


def test_a_saved_step_is_not_saved_again(saved):
    checkpointer = Checkpointer(saved, make_variables(9))
    checkpointer.save(2)
    variables = make_variables()
    Checkpointer(saved, variables).restore()
    assert values_of(variables) == {2}


def test_saving_before_later_checkpoints_is_rejected(saved):
    with fails(path="step", got=1):
        Checkpointer(saved, make_variables()).save(1)


DATA, INDEX = "ckpt-00000002.data-00000-of-00001", "ckpt-00000002.index"


@pytest.mark.parametrize(
    ("file", "damage"),
    [(DATA, damage) for damage in (flip, truncate, empty, remove)]
    + [(INDEX, damage) for damage in (flip, truncate, empty)],
)
def test_a_damaged_checkpoint_is_reported_and_passed_over(saved, file, damage):
    damage(saved / file)
    variables = make_variables()
    lines: list[str] = []
    checkpointer = Checkpointer(saved, variables, log=lines.append)
    assert checkpointer.restore() == 1
    assert checkpointer.intact_steps() == [1]
    assert values_of(variables) == {1}
    (line,) = lines
    assert re.search(rf"{saved}/ckpt-00000002\b.*damaged: \S", line)
    assert "\n" not in line

    # Training continues: the damaged one is deleted and cannot come back.
    assign(variables, 3)
    checkpointer.save(2)
    assert Checkpointer(saved, variables, log=lines.append).restore() == 2
    assert values_of(variables) == {3}
    assert len(lines) == 1


def test_damaged_checkpoints_do_not_count_for_keep(tmp_path):
    variables = make_variables(1)
    checkpointer = Checkpointer(tmp_path, variables, keep=2)
    for step in (1, 5, 9):
        checkpointer.save(step)
    truncate(tmp_path / "ckpt-00000009.index")
    resumed = Checkpointer(tmp_path, variables, keep=2, log=lambda line: None)
    assert resumed.restore() == 5
    resumed.save(6)
    assert resumed.saved_steps() == [5, 6]


@pytest.mark.parametrize("damage", [flip, truncate, empty, remove])
def test_the_state_file_does_not_matter(saved, damage):
    damage(saved / "checkpoint")
    variables = make_variables()
    assert Checkpointer(saved, variables).restore() == 2


def test_a_checkpoint_of_another_model_is_rejected_whole(saved):
    variables = make_variables(7)
    variables["task/stem/conv/v"] = variables.pop("task/stem/conv/w")
    variables["task/stem.0/b"] = tf.Variable(tf.fill([6], 7.0))
    with fails(path=f"{saved}/ckpt-00000002") as info:
        Checkpointer(saved, variables).restore()
    expected = [
        r"  missing \(1\):$",
        r"    task/stem/conv/v, float32 \[3, 4\].*'task/stem/conv/w'",
        r"  mismatched \(1\):$",
        r"    task/stem\.0/b,.* float32 \[6\],.* bfloat16 \[5\]$",
        r"  unexpected \(1\):$",
        r"    task/stem/conv/w, float32 \[3, 4\]$",
    ]
    for line, pattern in zip(info.value.got.splitlines()[1:], expected, strict=True):
        assert re.match(pattern, line)
    assert values_of(variables) == {7}


def test_only_the_first_of_many_problems_are_shown(tmp_path):
    Checkpointer(tmp_path, {f"w{i}": tf.Variable(0.0) for i in range(500)}).save(1)
    with fails() as info:
        Checkpointer(tmp_path, {}).restore()
    assert "unexpected (500):" in info.value.got
    assert "and 492 more" in info.value.got
    assert "w499" not in info.value.got


def test_a_checkpoint_is_on_disk_before_it_counts(tmp_path, monkeypatch):
    """Each file is synced before it gets its name, then the directory."""
    sync, synced, written = os.fsync, [], []

    def note(descriptor):
        sync(descriptor)
        names = {path.name for path in tmp_path.glob("ckpt-*")}
        synced.append((os.fstat(descriptor).st_ino, names))

    monkeypatch.setattr(os, "fsync", note)
    Checkpointer(tmp_path, make_variables()).save(
        1, when_written=lambda: written.extend(synced)
    )
    data, index = sorted(tmp_path.glob("ckpt-*"))
    assert written == [
        (data.stat().st_ino, set()),
        (index.stat().st_ino, {data.name}),
        (tmp_path.stat().st_ino, {data.name, index.name}),
    ]


def kill_at(monkeypatch, countdown):
    """Kills the process in the file operation after `countdown` others."""
    remaining = iter(range(countdown, -1, -1))

    def killing(operation):
        def wrapper(*args, **kwargs):
            if next(remaining) == 0:
                raise KilledError
            return operation(*args, **kwargs)

        return wrapper

    for name in ("mkdir", "replace", "unlink", "rmdir"):
        monkeypatch.setattr(pathlib.Path, name, killing(getattr(pathlib.Path, name)))


@pytest.mark.parametrize("keep", [1, 2])
def test_a_kill_between_any_two_file_operations_loses_nothing(tmp_path, keep):
    for countdown in itertools.count():
        directory = tmp_path / str(countdown)
        variables = make_variables(1)
        checkpointer = Checkpointer(directory, variables, keep=keep)
        for step in (1, 2):
            assign(variables, step)
            checkpointer.save(step)
        assign(variables, 3)
        with pytest.MonkeyPatch.context() as monkeypatch:
            kill_at(monkeypatch, countdown)
            try:
                checkpointer.save(3)
                is_complete = True
            except KilledError:
                is_complete = False

        resumed = Checkpointer(directory, variables, keep=keep, log=pytest.fail)
        step = resumed.restore() or 0
        assert step == 3 if is_complete else step in (2, 3)
        assert values_of(variables) == {step}
        resumed.save(4)
        assert resumed.saved_steps()[-1] == 4
        assert len(os.listdir(directory)) == 2 * len(resumed.saved_steps()) + 1
        if is_complete:
            break
    assert countdown >= 6  # mkdir, data, index, rmdir, two deleted files, state.


def save_until_killed(directory, pipe):
    """Restores, then saves step after step and sends each step's number."""
    variables = {f"w{i}": tf.Variable(tf.zeros([20_000])) for i in range(10)}
    checkpointer = Checkpointer(directory, variables, keep=2)
    restored = checkpointer.restore() or 0
    pipe.send((restored, values_of(variables)))
    for step in itertools.count(restored + 1):
        assign(variables, step)
        checkpointer.save(step)
        pipe.send((step, {step}))


@pytest.mark.exhaustive
def test_a_kill_at_any_moment_loses_nothing_saved(tmp_path):
    # The server imports TensorFlow once; each child is a fork of it.
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["tensorflow"])
    last_sent = 0
    for seconds in (0.061, 0.087, 0.123, 0.173, 0.211):
        receiver, sender = server.Pipe(duplex=False)
        child = server.Process(target=save_until_killed, args=(tmp_path, sender))
        child.start()
        sender.close()
        restored, values = receiver.recv()
        assert values == {restored}
        # It may have saved one step that it could not send.
        assert last_sent <= restored <= last_sent + 1
        last_sent, _ = receiver.recv()  # However slow the machine, something is saved.
        time.sleep(seconds)
        child.kill()
        child.join()
        with contextlib.suppress(EOFError):
            while True:
                last_sent, _ = receiver.recv()
        assert last_sent > restored


@pytest.mark.parametrize("put", [shutil.copy, shutil.move])
def test_a_checkpoint_of_another_step_is_passed_over(tmp_path, put):
    variables = {"w": tf.Variable(0.0), "global_step": tf.Variable(0, dtype=tf.int64)}
    checkpointer = Checkpointer(tmp_path, variables)
    for step in (1, 2, 3):
        assign(variables, step)
        checkpointer.save(step)
    for path in tmp_path.glob("ckpt-00000001.*"):
        put(path, str(path).replace("001.", "003."))
    lines: list[str] = []
    assert Checkpointer(tmp_path, variables, log=lines.append).restore() == 2
    assert values_of(variables) == {2}
    (line,) = lines
    assert re.search(rf"{tmp_path}/ckpt-00000003\b.*damaged: .*\b3\b.*\b1\b", line)


def test_a_lone_checkpoint_of_another_step_is_refused_and_stays(tmp_path):
    variables = {"w": tf.Variable(0.0), "global_step": tf.Variable(0, dtype=tf.int64)}
    checkpointer = Checkpointer(tmp_path, variables)
    checkpointer.save(0)
    for path in tmp_path.glob("ckpt-00000000.*"):
        path.rename(str(path).replace("000.", "003."))
    with fails(UserDamageError, path=str(tmp_path)):
        Checkpointer(tmp_path, variables).restore()
    assert checkpointer.saved_steps() == [3]
