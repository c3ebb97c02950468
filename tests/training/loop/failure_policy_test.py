"""Training continues after steps that are not finite and after loss spikes."""

from __future__ import annotations

import json
import re
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.core.errors import UserNumberError
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.loop.failure_policy import FailurePolicy
from lingvo_pipe.training.optim.keras_optimizer import OptimizerParams
from lingvo_pipe.training.run.metrics_log import read_metrics
from lingvo_pipe.training.run.run_directory import RunDirectory
from lingvo_pipe.training.stability.loss_spikes import LossSpikeError, LossSpikes
from lingvo_pipe.training.task.base_task import BaseTask
from tests.support.errors import fails
from tests.training.toy_run import (
    Input,
    batch,
    make_task,
    run,
    saved_bytes,
    saved_steps,
)

STEPS = 12


def _steps(logdir: Path) -> list[int]:
    return [r["step"] for r in read_metrics(logdir) if r["split"] == "train"]


def bad_batches(*steps: int) -> list[NestedMap]:
    return [batch(n, np.nan if n + 1 in steps else 1.0) for n in range(STEPS)]


BAD, LAST, KILLED = (4, 5, 7), 8, 5  # Steps of the run that several tests use.


@pytest.fixture(scope="module")
def skipping(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A run of eight steps, of which it skipped three, and its log."""
    logdir, logged = tmp_path_factory.mktemp("runs") / "skipping", list[str]()
    run(_skipping_task(), Input(*bad_batches(*BAD)), logdir, logged.append)
    return logdir, logged


def _skipping_task() -> BaseTask:
    return _task(max_skipped_steps=2, max_steps=LAST, keep_checkpoints=LAST)


def _killed(logdir: Path, copy: Path) -> Path:
    """Returns a copy of a run as if killed after step 5, with later metrics."""
    shutil.copytree(logdir, copy)
    for step in range(KILLED + 1, LAST + 1):
        for path in copy.glob(f"checkpoints/ckpt-{step:08d}.*"):
            path.unlink()
    return copy


def test_steps_that_are_not_finite_are_skipped(
    tmp_path: Path, skipping: tuple[Path, list[str]]
) -> None:
    logdir, logged = skipping
    skipped = [line for line in logged if line.startswith("Skipped")]
    assert len(skipped) == len(BAD)
    assert re.search(r"step 4\b.*\bnan\b.*input\[0\]", skipped[0])
    assert _steps(logdir) == [n for n in range(1, LAST + 1) if n not in BAD]

    # A run resumed in between ends in the same bytes.
    parts = _killed(logdir, tmp_path / "parts")
    assert saved_steps(parts)[-1] == KILLED
    run(_skipping_task(), Input(*bad_batches(*BAD)), parts)
    assert saved_bytes(parts, LAST) == saved_bytes(logdir, LAST)


def test_weights_that_are_not_finite_make_such_a_step(tmp_path: Path) -> None:
    batches = [batch(n) for n in range(4)]
    batches[1].weight = np.full_like(batches[1].weight, np.nan)
    logged: list[str] = []
    run(
        _task(max_skipped_steps=1, max_steps=4),
        Input(*batches),
        tmp_path,
        logged.append,
    )
    assert [line for line in logged if re.match(r"Skipped\b.*step 2\b", line)]
    assert _steps(tmp_path) == [1, 3, 4]


def test_a_negative_weight_ends_the_run_after_saving_it(tmp_path: Path) -> None:
    batches = [batch(n) for n in range(STEPS)]
    batches[4].weight = -batches[4].weight
    task = _task(save_interval_steps=100)
    with fails(path="weight", hint="The run is saved after step 4."):
        run(task, Input(*batches), tmp_path)
    assert saved_steps(tmp_path) == [4]


def test_a_skipped_step_changes_no_weight(skipping: tuple[Path, list[str]]) -> None:
    before, after = (saved_bytes(skipping[0], step) for step in (3, 4))
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"global_step", "skipped_steps"}


def test_too_many_consecutive_bad_steps_end_the_run(tmp_path: Path) -> None:
    task = _task(max_skipped_steps=2)
    with pytest.raises(UserNumberError, match=r"step 6\b.*\bnan\b") as error:
        run(task, Input(*bad_batches(2, 4, 5, 6)), tmp_path)
    assert saved_steps(tmp_path)[-1] == 5
    (accepting,) = re.findall(r"--allow_params_change=(\S+)\.", error.value.hint)
    names = ("learning_rate", "clip_gradient_norm_to_value")
    assert accepting.split(",") == [f"task.train.{name}" for name in names]


_CLIPPINGS = ["clip_gradient_norm_to_value", "clip_gradient_single_norm_to_value"]


@pytest.mark.parametrize(
    ("train_params", "slices", "clippings"),
    [
        ({}, {"cells[0]": 2}, _CLIPPINGS[:1]),
        ({"steps_per_loop": 2}, None, _CLIPPINGS[1:]),
        ({"steps_per_loop": 2}, {"cells[0]": 2}, []),
        ({_CLIPPINGS[1]: 0.5}, None, _CLIPPINGS[1:]),
        (
            {"optimizer": OptimizerParams("SGD", gradient_accumulation_steps=2)},
            None,
            [],
        ),
    ],
)
def test_the_advised_clipping_is_not_refused(
    tmp_path: Path, train_params: dict[str, Any], slices: Any, clippings: list[str]
) -> None:
    p = _task(**train_params).params.Copy()
    p.pipeline.slices = slices
    state = {"w": tf.Variable(np.nan)}
    step: Any = SimpleNamespace(task=SimpleNamespace(params=p), State=lambda: state)
    policy = FailurePolicy(step, RunDirectory(tmp_path, "toy.Toy"), print)
    with fails(UserNumberError, path="w") as info:
        policy.check_variables(1)
    assert re.findall(r"clip_\w+", info.value.hint) == 2 * clippings


def test_a_resumed_run_continues_the_count(
    tmp_path: Path, skipping: tuple[Path, list[str]]
) -> None:
    """Once each start counted from 0 again."""
    logdir = _killed(skipping[0], tmp_path / "run")
    with pytest.raises(UserNumberError, match=r"step 6\b.*\bnan\b"):
        run(_task(max_skipped_steps=2), Input(*bad_batches(4, 5, 6, 7)), logdir)


def _task(**train_params: Any) -> BaseTask:
    params = {"max_steps": STEPS, "report_interval_steps": 1, **train_params}
    return make_task(**params)


# A step with large images spoils the weights.
SPIKE, SAVED = 8, 6
SPIKING = {"loss_spike_factor": 4.0, "save_interval_steps": SAVED}


def _with_spikes(*numbers: int) -> Input:
    """Returns more batches than steps; those at some indices are bad."""
    return Input(*[batch(n, 1e3 if n in numbers else 1.0) for n in range(STEPS + 10)])


def test_a_run_without_a_checkpoint_rolls_back_to_its_start(tmp_path: Path) -> None:
    params = SPIKING | {"save_interval_steps": 100}
    few = [batch(n, 1e3 if n == SPIKE - 1 else 1.0) for n in range(STEPS)]
    # Once the error named step 4, which such a run does not save.
    with fails(path="TrainBatches", hint="The run is saved after step 0."):
        run(_task(**params), Input(*few), tmp_path)
    assert saved_steps(tmp_path) == [0]
    file = tmp_path / "skipped_batches.json"
    assert json.loads(file.read_text()) == [{"after_step": 0, "num_batches": 8}]


@pytest.mark.exhaustive
def test_too_many_spikes_end_the_run(tmp_path: Path) -> None:
    data = _with_spikes(7, 9, 10)
    task = _task(max_rollbacks=1, **SPIKING)
    with fails(UserNumberError, path="task.train.max_rollbacks"):
        run(task, data, tmp_path)
    # With more roll-backs the run resumes from there.
    run(_task(max_rollbacks=3, **SPIKING), data, tmp_path)
    assert _steps(tmp_path) == list(range(1, STEPS + 1))


def test_a_signal_is_not_forgotten_after_a_spike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the run trained to its end."""
    original, logged = LossSpikes.check, list[str]()

    def check(self: LossSpikes, step: int, loss: float) -> None:
        try:
            original(self, step, loss)
        except LossSpikeError:
            signal.raise_signal(signal.SIGTERM)
            raise

    monkeypatch.setattr(LossSpikes, "check", check)
    run(_task(**SPIKING), _with_spikes(SPIKE - 1), tmp_path, logged.append)
    assert re.match(rf"Stopped\b.*\bSIGTERM\b.*step {SAVED}\b.*\bsaved\b", logged[-1])
    assert _steps(tmp_path)[-1] == SAVED
