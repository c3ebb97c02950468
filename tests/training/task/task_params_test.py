"""Wrong values of a task's params of training and evaluation are refused by path."""

from __future__ import annotations

import math
from typing import Any

import pytest

from lingvo_pipe.training.step.train_state import TrainState
from lingvo_pipe.training.task.task_params import check_loop_params
from tests.support.errors import fails
from tests.training.toy_run import make_task

WRONG: dict[str, list[Any]] = {
    "train.learning_rate": [None, 0.0, -0.1, "fast", True, math.nan, math.inf],
    "train.clip_gradient_norm_to_value": ["all", -0.5, math.nan, math.inf],
    "train.clip_gradient_single_norm_to_value": [-1.0, math.inf],
    "train.ema_decay": [-0.1, 1, None, math.nan, "0.9"],
    "train.l2_regularizer_weight": [-1.0, math.nan, "4e-5"],
    "train.l2_regularizer_scales": [[("out", -1)], {"out": 0.0}, ["out"]],
    "train.loss_spike_factor": [1.0, "3", True],
    "train.max_rollbacks": [-1, None, 2.0],
    "train.max_skipped_steps": [-1, 1.5, True],
    "train.max_steps": [None, 0, 2**31],
    "train.steps_per_loop": [0],
    "train.save_interval_steps": [0],
    "train.save_interval_seconds": [0, "5", math.nan],
    "train.report_interval_steps": [0],
    "train.keep_checkpoints": [0],
    "train.histogram_interval_steps": [0],
    "train.init_from_checkpoint_ema": [1],
    "eval.interval_steps": [0],
    "eval.images": [None],
    "eval.best_metric": [3, "-"],
    "eval.patience": [0, True, 2],  # A patience needs a metric and an interval.
}


@pytest.mark.parametrize(
    ("path", "value"), [(path, x) for path, wrong in WRONG.items() for x in wrong]
)
def test_a_wrong_value_is_refused(path: str, value: Any) -> None:
    p = make_task().params.Copy()
    p.Set(**{path: value})
    with fails(path=f"task.{path}") as info:
        check_loop_params(p)
        TrainState(p.Instantiate())
    assert repr(info.value.got) == repr(value)


def test_a_patience_needs_evaluations() -> None:
    p = make_task().params.Copy()
    p.eval.Set(patience=2, best_metric="loss")
    with fails(path="task.eval.patience", hint="Or set task.eval.interval_steps."):
        check_loop_params(p)
    p.eval.interval_steps = 1
    check_loop_params(p)


def test_a_run_that_may_roll_back_saves_by_steps_alone() -> None:
    p = make_task().params.Copy()
    p.train.Set(save_interval_seconds=9, loss_spike_factor=3.0)
    with fails(path="task.train.save_interval_seconds", got=9):
        check_loop_params(p)
    p.train.loss_spike_factor = None
    check_loop_params(p)


def test_all_wrong_values_of_a_group_are_listed() -> None:
    p = make_task().params.Copy()
    p.train.Set(max_steps=0, keep_checkpoints=0)
    with fails() as info:
        check_loop_params(p)
    paths = [problem.path for problem in info.value.problems]
    assert paths == ["task.train.max_steps", "task.train.keep_checkpoints"]
