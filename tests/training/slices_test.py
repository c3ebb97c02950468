"""Training with layers in slices is training, whatever the slices."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.slicing import whole_path
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.schedules.by_name import V_SHAPED_NAMES
from lingvo_pipe.training.checkpoint.checkpointer import Checkpointer
from lingvo_pipe.training.optim.keras_optimizer import OptimizerParams
from lingvo_pipe.training.step.several_steps import SeveralSteps
from lingvo_pipe.training.step.train_step import TrainStep
from lingvo_pipe.training.task.task_params import whole_task
from tests.models.transformer.small_models import (
    sentences,
    translation_batch,
    translation_task,
)
from tests.support.errors import fails

TABLES = [f"cells[{i}]" for i in (0, 2, 4)]
SLICES = {**dict.fromkeys(TABLES, 2), "cells[1].feed_forward": 3, "cells[3]": 2}
OTHER_SLICES = {**dict.fromkeys(TABLES, 3), "cells[3].feed_forward.body": 3}
NUM_STEPS = 2
SEVERAL_STAGES_PER_DEVICE = ("interleaved", "interleaved_zero_bubble", *V_SHAPED_NAMES)


def _params(slices: Any, **pipeline: Any) -> InstantiableParams:
    p = translation_task(tied=True, num_layers=1, dropout_prob=0.1).Set(random_seed=3)
    p.pipeline.Set(slices=slices, num_micro_batches=2, **pipeline)
    p.train.Set(
        learning_rate=0.01,
        optimizer=OptimizerParams("Adam", epsilon=1e-3),
        clip_gradient_norm_to_value=1.0,
        ema_decay=0.5,
    )
    return p


def _batch(step: int) -> NestedMap:
    lengths = [i % 3 + 1 for i in range(8)]
    source, target = ([[x] for x in sentences(lengths, 2 * step + i)] for i in (0, 1))
    return translation_batch(source, target)


def _trained(p: InstantiableParams, steps: Any = TrainStep) -> Any:
    step = steps(p.Instantiate())
    for _ in step.Steps([_batch(i) for i in range(NUM_STEPS)]):
        pass
    return step


def _bytes(step: Any) -> dict[str, bytes]:
    return {name: v.numpy().tobytes() for name, v in step.State().items()}


@functools.cache
def _trained_in_one_stage(others: bool) -> TrainStep:
    """Trains in SLICES, or in OTHER_SLICES."""
    return _trained(_params(OTHER_SLICES if others else SLICES, recompute="never"))


def _assert_near(found: Any, want: Any, tolerance: float = 1e-6) -> None:
    ours, theirs = found.State(), want.State()
    assert ours.keys() == theirs.keys()
    for name, variable in theirs.items():
        value = variable.numpy()
        distance = np.abs(ours[name].numpy() - value).max()
        assert distance <= tolerance * max(np.abs(value).max(), 1e-2), name


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("splits", "schedule", "recompute"),
    [
        (2, "zero_bubble", "never"),
        (4, "zero_bubble_v", "never"),
        (4, "1f1b", "always"),
        (4, "v_half", "never"),
        (4, "v_min", "never"),
        (2, "dualpipe_v", "never"),
        (4, "interleaved", "always"),
        (8, "interleaved_zero_bubble", "never"),
        (3, "gpipe", "except_last"),
        (8, "1f1b", "always"),
        ([1, 2, 5, 14, 16], "gpipe", "never"),
    ],
)
def test_the_same_slices_leave_the_same_bytes(
    splits: Any, schedule: str, recompute: str
) -> None:
    p = _params(SLICES, splits=splits, schedule=schedule, recompute=recompute)
    if schedule in SEVERAL_STAGES_PER_DEVICE:
        p.pipeline.stages_per_device = 2
    assert _bytes(_trained(p)) == _bytes(_trained_in_one_stage(others=False))


@functools.cache
def _trained_whole(tied: bool = True) -> TrainStep:
    p = _params(None)
    p.pipeline.tied = p.pipeline.tied if tied else {}
    p.train.clip_gradient_norm_to_value = 1.0 if tied else None
    return _trained(p)


@pytest.mark.exhaustive
@pytest.mark.parametrize("others", [False, True])
def test_slices_train_like_the_whole_model(others: bool) -> None:
    found = _trained_in_one_stage(others=others)
    assert any(whole_path(path) != path for path in found.trained)
    _assert_near(found, _trained_whole())


@pytest.mark.exhaustive
def test_several_steps_in_a_graph_train_slices() -> None:
    p = _params(SLICES, splits=2)
    p.pipeline.tied = {}
    p.train.Set(steps_per_loop=NUM_STEPS, clip_gradient_norm_to_value=None)
    _assert_near(_trained(p, SeveralSteps), _trained_whole(tied=False))


@pytest.mark.exhaustive
def test_a_run_resumes_with_other_slices_and_none(tmp_path: Path) -> None:
    trained = TrainStep(_params(SLICES).Instantiate())
    for i, slices in enumerate((OTHER_SLICES, None)):
        for _ in trained.Steps([_batch(i)]):
            pass
        Checkpointer(tmp_path / str(i), trained.State()).save(i + 1)
        trained = TrainStep(_params(slices).Instantiate())
        assert Checkpointer(tmp_path / str(i), trained.State()).restore() == i + 1
    _assert_near(trained, _trained_whole())
    path = str(tmp_path / "1" / f"ckpt-{NUM_STEPS:08d}")
    names = {name for name, _ in tf.train.list_variables(path)}
    assert names == set(trained.State())
    assert not any(">" in name for name in names)


@functools.cache
def _initial_state() -> dict[str, np.ndarray]:
    """Returns the state before the first step of the whole model, by name."""
    state = TrainStep(_params(None).Instantiate()).State()
    return {name: variable.numpy() for name, variable in state.items()}


@pytest.mark.parametrize("slices", [SLICES, dict.fromkeys(TABLES, 11)])
def test_initial_values_do_not_depend_on_slices(slices: Any) -> None:
    """Eleven pieces were joined in the order of their names: 0, 1, 10, 2."""
    state = TrainStep(_params(slices).Instantiate()).State()
    assert state.keys() == _initial_state().keys()
    for name, value in _initial_state().items():
        np.testing.assert_array_equal(state[name].numpy(), value)


def test_the_whole_task_has_no_slices() -> None:
    p = whole_task(_params(SLICES, splits=[1, 5, 10, 16], memory_limit=1e3))
    assert p.pipeline.slices is None
    assert p.pipeline.splits == 4
    assert set(p.Instantiate().VariablePaths()) <= {*_initial_state()}


@pytest.mark.parametrize("name", ["Adafactor", "Lamb"])
def test_updates_by_whole_weights_are_refused(name: str) -> None:
    p = _params(SLICES)
    p.train.Set(
        optimizer=OptimizerParams(name),
        clip_gradient_norm_to_value=None,
        clip_gradient_single_norm_to_value=1.0,
    )
    with fails() as info:
        TrainStep(p.Instantiate())
    assert [problem.path for problem in info.value.problems] == [
        "task.train.optimizer.name",
        "task.train.clip_gradient_single_norm_to_value",
    ]


def test_expressions_match_paths_without_slices() -> None:
    p = _params(SLICES)
    p.train.bprop_variable_exclusion = r"encoder_0/feed_forward/body/expand/w$"
    p.train.l2_regularizer_weight = 0.1
    p.train.l2_regularizer_scales = [(r"decoder_0/self_attention/", 0.0)]
    trained = TrainStep(p.Instantiate()).trained
    frozen = {
        whole_path(x) for x in p.Instantiate().VariablePaths() if x not in trained
    }
    assert frozen == {"task/pipeline/encoder_0/feed_forward/body/expand/w"}
