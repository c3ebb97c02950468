"""Any settings train, and resume on other devices with the same bytes, or are refused.

A refusal is a line of text, before anything is written. Only wrong settings may be
refused.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from lingvo_pipe.core.errors import UserError
from lingvo_pipe.hyperparams import Params
from lingvo_pipe.pipeline.devices import stage_devices  # noqa: F401  Asks for several.
from lingvo_pipe.training.loop.training_loop import train
from lingvo_pipe.training.run.run_directory import RunDirectory
from lingvo_pipe.training.task.pipeline_inputs import configure_inputs
from tests.support.cases import seeds
from tests.support.command_line import snapshot
from tests.training.random_settings import MODELS, random_settings
from tests.training.toy_run import Input, saved_bytes

_NUM_SEEDS = 24
_FAST = (26,)
_LAST = 2


def _train(model: str, logdir: Path, values: dict[str, Any]) -> bool:
    """Trains to the last step, or returns False if the settings are refused."""
    before = snapshot(logdir)
    p = Params()
    p.Define("task", MODELS[model].make_params(), "")
    p.task.train.Set(max_steps=_LAST, learning_rate=0.1, save_interval_steps=1)
    p.task.eval.images = False
    for path, value in values.items():
        owner, name = path.split(".")
        p.task.Get(owner).Set(**{name: value})
    data = Input(*map(MODELS[model].make_batch, range(_LAST)))
    try:
        configure_inputs(p.task, data)
        task = p.task.Instantiate()
        directory = RunDirectory(logdir, model)
        train(task, data, data, directory, p.ToText(), lambda line: None)
    except UserError:
        assert snapshot(logdir) == before
        return False
    return True


def test_most_settings_must_train() -> None:
    drawn = map(random_settings, range(_NUM_SEEDS))
    num_valid = sum(not settings.may_be_refused for settings in drawn)
    assert num_valid > 0.85 * _NUM_SEEDS


@pytest.mark.parametrize("seed", seeds(_NUM_SEEDS, _FAST))
def test_settings_are_refused_or_resume_with_the_same_bytes(
    tmp_path: Path, seed: int
) -> None:
    settings = random_settings(seed)
    if not _train(settings.model, tmp_path, settings.values):
        assert settings.may_be_refused
        return
    expected = saved_bytes(tmp_path, _LAST)
    checkpoints = tmp_path / "checkpoints"
    for path in checkpoints.glob(f"ckpt-{_LAST:08d}*"):
        path.unlink()
    if not any(checkpoints.glob("ckpt-*")):  # Several steps in a loop: it starts anew.
        shutil.rmtree(checkpoints)
    if _train(settings.model, tmp_path, settings.resumed):
        assert saved_bytes(tmp_path, _LAST) == expected
    else:
        assert settings.may_be_refused
