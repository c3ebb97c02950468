"""Slots on the host of their weights' devices change no byte, and no checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.training.optim.keras_optimizer import OptimizerParams
from lingvo_pipe.training.run.changed_params import check_changes
from lingvo_pipe.training.step.several_steps import SeveralSteps
from lingvo_pipe.training.step.train_step import TrainStep
from tests.support.cases import fast_cases
from tests.support.errors import fails
from tests.training.toy_run import (
    Input,
    batch,
    published_params,
    run,
    saved_bytes,
)

BATCHES = [batch(seed) for seed in range(6)]
PATH = "task.train.offload_slots"
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "RMSpropFromOnes": {"momentum": 0.9, "centered": True},
    "SGD": {"momentum": 0.9},
    "Adam": {"gradient_accumulation_steps": 2},
    "AdamW": {"weight_decay": 0.1},
    "Lion": {},
    "Adafactor": {},
}


def _params(name: str, num_stages: int, **train: Any) -> InstantiableParams:
    p = published_params(num_stages=num_stages)
    p.train.optimizer = OptimizerParams(name, **OPTIMIZERS[name])
    if "gradient_accumulation_steps" in OPTIMIZERS[name]:
        p.train.clip_gradient_norm_to_value = None
    p.train.Set(**train)
    return p


def _trained(p: InstantiableParams) -> tuple[dict[str, bytes], Any]:
    """Returns the state's bytes after some steps, and the state."""
    state = TrainStep(p.Instantiate())
    list(state.Steps(BATCHES))
    return {name: x.numpy().tobytes() for name, x in state.State().items()}, state


CASES = [(name, num_stages) for name in OPTIMIZERS for num_stages in (1, 2, 4)]
FAST = {("Adam", 2)}


@pytest.mark.parametrize(("name", "num_stages"), fast_cases(CASES, FAST))
def test_the_bytes_are_those_without(name: str, num_stages: int) -> None:
    expected, _ = _trained(_params(name, 1))
    values, state = _trained(_params(name, num_stages, offload_slots=True))
    assert values == expected
    devices = {x.device[-5:] for x in state.trained.values()}
    assert devices == {f"CPU:{i}" for i in range(num_stages)}
    slots = [
        x
        for learner in state.learners.values()
        for _, x in learner.OwnVariables()
        if x.shape.rank
    ]
    assert {x.device[-5:] for x in slots} == {"CPU:0"}


@pytest.mark.exhaustive
@pytest.mark.parametrize("first", [False, True])
def test_a_run_may_resume_with_or_without(first: bool, tmp_path: Path) -> None:
    def go(logdir: str, offload: bool, num_stages: int, max_steps: int) -> None:
        p = _params("Adam", num_stages, offload_slots=offload, max_steps=max_steps)
        run(p.Instantiate(), Input(*BATCHES), tmp_path / logdir)

    go("whole", False, 1, 6)
    go("parts", first, 2, 3)
    go("parts", not first, 4, 6)
    assert saved_bytes(tmp_path / "parts", 6) == saved_bytes(tmp_path / "whole", 6)


def test_a_change_is_recorded() -> None:
    """On GPUs, updates on the host may have other last digits."""
    before, now = (f"{PATH} : {x}\n" for x in (True, False))
    assert check_changes(before, now, []) == [f"{PATH} : True -> False"]
    assert check_changes("", now, []) == []  # A run of a version without the param.


def test_several_steps_in_a_loop_are_refused() -> None:
    p = published_params()
    p.train.Set(clip_gradient_norm_to_value=None, offload_slots=True)
    with fails(path=PATH):
        SeveralSteps(p.Instantiate())


def test_other_values_are_refused() -> None:
    p = published_params()
    p.train.offload_slots = "always"
    with fails(path=PATH, got="always"):
        TrainStep(p.Instantiate())
