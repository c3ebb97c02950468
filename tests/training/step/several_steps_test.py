"""Several steps in one call have the bytes of as many calls, metrics included."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.local_loss import LocalLossLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.optim.keras_optimizer import OptimizerParams, ScheduleParams
from lingvo_pipe.training.run.metrics_log import read_metrics
from lingvo_pipe.training.step.several_steps import SeveralSteps
from lingvo_pipe.training.step.train_state import TrainState
from lingvo_pipe.training.step.train_step import TrainStep
from tests.support.cases import fast_cases
from tests.support.errors import fails
from tests.training.random_settings import MODELS
from tests.training.toy_run import (
    Input,
    batch,
    make_task,
    published_params,
    run,
    saved_bytes,
)

BATCHES = [batch(seed) for seed in range(7)]


def _params(**train_params: Any) -> InstantiableParams:
    """Returns params of the published training, in blocks with local losses."""
    p = published_params()
    p.train.Set(clip_gradient_norm_to_value=None, clip_gradient_single_norm_to_value=1)
    p.train.Set(**train_params)
    first, norm, *others = p.pipeline.cell_tpl
    num_classes = others[-1].output_dim
    head = FCLayer.Params().Set(input_dim=norm.dim, output_dim=num_classes)
    local = LocalLossLayer.Params().Set(name="local", head=head)
    p.pipeline.Set(
        cell_tpl=[first, norm, local, *others],
        splits=[3, 3 + len(others)],
        schedule="local",
    )
    return p


def _run_params(**train_params: Any) -> InstantiableParams:
    """Returns params of a plain task in two stages, whose runs take little time."""
    return make_task(2, **train_params).params.Copy()


def _trained(state: Any, groups: Sequence[Sequence[NestedMap]]) -> Any:
    """Returns metrics of all steps, and the state after them."""
    metrics = [each for group in groups for each in state.Steps(group)]
    return _bytes([dict(each) for each in metrics]), _state(state)


def _bytes(structure: Any) -> list[bytes]:
    return [np.asarray(x).tobytes() for x in tf.nest.flatten(structure)]


def _state(state: TrainState) -> dict[str, bytes]:
    return {name: v.numpy().tobytes() for name, v in state.State().items()}


LEARNERS: dict[str, dict[str, Any]] = {
    "RMSProp, weight decay, averages": {},
    "Adam with a schedule, a frozen stage": {
        "optimizer": OptimizerParams("Adam"),
        "lr_schedule": ScheduleParams("CosineDecay", decay_steps=9),
        "bprop_variable_exclusion": "/(in|norm|local)/",
        "clip_gradient_single_norm_to_value": None,
    },
    "Adam of two steps' gradients, a frozen stage": {
        "optimizer": OptimizerParams("Adam", gradient_accumulation_steps=2),
        "bprop_variable_exclusion": "/(in|norm|local)/",
        "clip_gradient_single_norm_to_value": None,
    },
    "Adafactor": {"optimizer": OptimizerParams("Adafactor"), "ema_decay": 0.0},
}


_FAST = {"Adam of two steps' gradients, a frozen stage"}


@pytest.mark.parametrize(
    "learner",
    fast_cases(LEARNERS, _FAST),
)
def test_a_loop_has_the_bytes_of_single_steps(learner: str) -> None:
    params = LEARNERS[learner]
    expected = _trained(TrainStep(_params(**params).Instantiate()), [BATCHES])
    loop = SeveralSteps(_params(**params).Instantiate())
    groups = [BATCHES[:2], BATCHES[2:3], BATCHES[3:]]
    assert _trained(loop, groups) == expected


@pytest.mark.exhaustive
def test_a_pipeline_without_blocks_can_loop_too() -> None:
    def params() -> InstantiableParams:
        p = published_params()
        p.train.clip_gradient_norm_to_value = None
        first, norm, middle, last = p.pipeline.cell_tpl
        # Many weights, so that the norm of all gradients shows their order.
        middles = [middle.Copy().Set(name=f"mid{i}") for i in range(8)]
        p.pipeline.Set(cell_tpl=[first, norm, *middles, last], splits=2)
        return p

    expected = _trained(TrainStep(params().Instantiate()), [BATCHES])
    assert _trained(SeveralSteps(params().Instantiate()), [BATCHES]) == expected


@pytest.mark.exhaustive
def test_a_stage_may_have_no_weights() -> None:
    """Its update has no results, and TensorFlow then returned an operation."""
    model = MODELS["without_weights"]
    batches = [model.make_batch(step) for step in range(3)]

    def params() -> InstantiableParams:
        p = model.make_params()
        p.pipeline.Set(splits=len(p.pipeline.cell_tpl), num_micro_batches=2)
        p.train.learning_rate = 0.1
        return p

    expected = _trained(TrainStep(params().Instantiate()), [batches])
    assert _trained(SeveralSteps(params().Instantiate()), [batches]) == expected


@pytest.mark.exhaustive
def test_a_run_may_change_its_steps_per_loop(tmp_path: Path) -> None:
    """Reports, evaluations and checkpoints come at the same steps."""

    def go(logdir: str, max_steps: int, steps_per_loop: int) -> None:
        p = _run_params(max_steps=max_steps, steps_per_loop=steps_per_loop)
        p.train.Set(save_interval_steps=4, report_interval_steps=1)
        p.eval.interval_steps = 3
        run(p.Instantiate(), Input(*BATCHES), tmp_path / logdir)

    go("one", 7, 1)
    for steps, at_once in [(3, 2), (7, 5)]:
        go("parts", steps, at_once)
    assert saved_bytes(tmp_path / "parts", 7) == saved_bytes(tmp_path / "one", 7)
    reports = read_metrics(tmp_path / "one")
    assert read_metrics(tmp_path / "parts") == reports
    evaluated = [each["step"] for each in reports if each["split"] == "test"]
    assert evaluated == [3, 6, 7]


def test_an_error_names_the_step_that_is_not_finite() -> None:
    loop = SeveralSteps(make_task(2))
    spoilt = batch(3)
    spoilt.image[1] = np.nan
    pattern = r"step 3\b.*\bnan\b.*input\[0\]"
    with pytest.raises(FloatingPointError, match=pattern):
        list(loop.Steps([*BATCHES[:2], spoilt, *BATCHES[3:]]))


@pytest.mark.exhaustive
def test_a_run_rolls_back_from_a_spike_before_a_nan(tmp_path: Path) -> None:
    """Once the call ended the run before the spike was found."""

    def go(logdir: str, steps_per_loop: int) -> None:
        p = _run_params(max_steps=9, steps_per_loop=steps_per_loop)
        p.train.Set(save_interval_steps=9, loss_spike_factor=1.01)
        p.train.Set(report_interval_steps=1, max_rollbacks=1)
        spoilt = batch(5)
        spoilt.image[1] = np.nan
        data = [*BATCHES, spoilt]
        with contextlib.suppress(FloatingPointError):
            run(p.Instantiate(), Input(*data, *BATCHES), tmp_path / logdir)
        assert (tmp_path / logdir / "skipped_batches.json").exists()

    go("one", 1)
    go("loop", 9)
    names = ["skipped_batches.json", "metrics.jsonl"]
    one, loop = (
        [(tmp_path / run_name / name).read_text() for name in names]
        for run_name in ("one", "loop")
    )
    assert loop == one


@pytest.mark.exhaustive
def test_a_profile_shows_all_steps_of_a_call(tmp_path: Path) -> None:
    p = _run_params(max_steps=6, steps_per_loop=2)
    p.train.save_interval_steps = 100
    logged: list[str] = []
    data = Input(*BATCHES)
    run(p.Instantiate(), data, tmp_path, logged.append, profile_step=5)
    (line,) = [each for each in logged if "bubble" in each]
    # Not predicted by the first call, which warms up and takes far longer.
    found = re.match(
        r"steps 5 to 6: ([0-9.]+) ms each .* predicted ([0-9.]+) ms;", line
    )
    assert found
    assert float(found[2]) < 20 * float(found[1])
    table = (tmp_path / "profile" / "step-6.txt").read_text()
    assert table.startswith("Steps 5 to 6")
    assert re.search("update +[0-9]", table)


@pytest.mark.exhaustive
def test_a_run_of_a_single_call_logs_that_it_is_not_profiled(tmp_path: Path) -> None:
    logged: list[str] = []
    p = _run_params(max_steps=5, steps_per_loop=5)
    p.train.save_interval_steps = 100
    run(p.Instantiate(), Input(*BATCHES), tmp_path, logged.append, profile_step=3)
    assert any(re.match(r"Step 3\b.*--profile_step", line) for line in logged)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("clip_gradient_norm_to_value", 1.0),
        ("max_skipped_steps", 2),
        ("optimizer", OptimizerParams("Nadam")),
    ],
)
def test_params_that_need_all_stages_are_rejected(name: str, value: Any) -> None:
    p = _params(**{name: value}, clip_gradient_single_norm_to_value=None)
    with fails(path=f"task.train.{name}"):
        SeveralSteps(p.Instantiate())
