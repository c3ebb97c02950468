"""A model gets its trained weights, or their averages if there are any."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.core.errors import UserDamageError
from lingvo_pipe.training.checkpoint.checkpoint_files import stem_of
from lingvo_pipe.training.checkpoint.checkpointer import Checkpointer
from lingvo_pipe.training.checkpoint.restored_weights import restore_weights
from lingvo_pipe.training.step.train_state import TrainState
from lingvo_pipe.training.task.base_task import BaseTask
from tests.support.errors import fails
from tests.training.injected_faults import truncate
from tests.training.toy_run import published_params

STEPS = (1, 2, 3)


def save_states(directory: Path, **train_params: Any) -> BaseTask:
    """Saves states as after steps that change weights, and averages otherwise."""
    p = published_params()
    p.train.Set(**train_params)
    task = p.Instantiate()
    train_state = TrainState(task)
    variables = train_state.State()
    checkpointer = Checkpointer(directory, variables)
    for step in STEPS:
        for name, variable in variables.items():
            if name.startswith("task/"):
                change = 2.0 if name.endswith("/ema") else 1.0
                variable.assign_add(tf.fill(variable.shape, change))
        train_state.global_step.assign(step)
        checkpointer.save(step)
    return task


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of three steps with averages."""
    directory = tmp_path_factory.mktemp("source")
    save_states(directory)
    return directory


def weights(
    directory: Path, checkpoint: str | None = None, num_stages: int = 4
) -> tuple[int, dict[str, np.ndarray]]:
    variables = published_params(num_stages=num_stages).Instantiate().VariablePaths()
    step = restore_weights(variables, directory, checkpoint, lambda _: None)
    return step, {path: variable.numpy() for path, variable in variables.items()}


def test_the_newest_averages_are_restored(source: Path) -> None:
    step, got = weights(source)
    assert step == 3
    state = tf.train.load_checkpoint(str(source / stem_of(3)))
    for path, value in got.items():
        np.testing.assert_array_equal(value, state.get_tensor(f"{path}/ema"))
        assert not np.array_equal(value, state.get_tensor(path))


def test_a_named_checkpoint_is_restored(source: Path) -> None:
    step, got = weights(source, "ckpt-00000002")
    assert step == 2
    newest = weights(source, "ckpt-00000003")[1]
    assert all(not np.array_equal(value, newest[path]) for path, value in got.items())


def test_without_averages_the_weights_are_restored(tmp_path: Path) -> None:
    task = save_states(tmp_path, ema_decay=0.0, ema_decay_moving_vars=None)
    _, got = weights(tmp_path)
    for path, variable in task.VariablePaths().items():
        np.testing.assert_array_equal(got[path], variable)


def test_a_damaged_checkpoint_is_passed_over_or_rejected(
    source: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(source, tmp_path / "checkpoints"))
    (data,) = copy.glob("ckpt-00000003.data-*")
    truncate(data)
    assert weights(copy)[0] == 2
    with fails(UserDamageError, path=f"{copy}/ckpt-00000003"):
        weights(copy, "ckpt-00000003")


def test_a_missing_checkpoint_is_an_error(source: Path, tmp_path: Path) -> None:
    with fails(path="--checkpoint", got="ckpt-3") as info:
        weights(source, "ckpt-3")
    assert "'ckpt-00000003'" in info.value.hint
    with fails(path=str(tmp_path), got="none"):
        weights(tmp_path)


def test_another_models_checkpoint_is_rejected(source: Path) -> None:
    task = published_params(num_classes=3).Instantiate()
    before = {path: v.numpy() for path, v in task.VariablePaths().items()}
    with fails(path=f"{source}/ckpt-00000003"):
        restore_weights(task.VariablePaths(), source, None, lambda _: None)
    for path, variable in task.VariablePaths().items():
        np.testing.assert_array_equal(variable, before[path])
