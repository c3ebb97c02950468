"""The model to start with: it has all parts of large AmoebaNets."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import pytest

import model_registry
from lingvo_pipe.layers.batch_norm import BatchNormLayer
from lingvo_pipe.models.amoebanet.cell import AmoebaCell
from lingvo_pipe.models.images.auxiliary_classifier import AuxiliaryClassifierLayer
from lingvo_pipe.pipeline.devices import stage_devices  # noqa: F401  Asks for several.
from lingvo_pipe.training.step.train_step import TrainStep
from lingvo_pipe.training.task.local_training import with_local_losses
from tests.registered_models.reduced_models import batches, reduced_params
from tests.support.cases import exhaustive

DIGITS = "image.digits.AmoebaNetDigits"


def _params(name: str = DIGITS) -> Any:
    return model_registry.GetParams(name, "Train")


def test_it_has_auxiliary_head_drop_path_batch_norm_and_averages() -> None:
    task = _params().task
    cells = task.pipeline.cell_tpl
    assert task.feed_targets
    heads = [p.name for p in cells if p.cls is AuxiliaryClassifierLayer]
    assert heads == ["auxiliary_head"]
    dropping = [p for p in cells if p.cls is AmoebaCell]
    assert len(dropping) == 5
    for p in dropping:
        assert p.norm_tpl.cls is BatchNormLayer
        assert p.drop_path_tpl.keep_prob < 1.0
        assert p.drop_path_tpl.num_steps == task.train.max_steps
    assert task.train.ema_decay > 0.9


@functools.cache
def _trained(num_stages: int) -> dict[str, bytes]:
    """Returns the state after two steps at the final drop-path rate."""
    params = _params()
    params.task.pipeline.splits = num_stages
    step = TrainStep(params.task.Instantiate())
    last = params.task.train.max_steps
    step.global_step.assign(last)
    for batch in itertools.islice(params.input.Instantiate().TrainBatches(last), 2):
        metrics = step(batch)
        assert float(metrics.auxiliary_loss[0]) > 0.0
    return {path: v.numpy().tobytes() for path, v in step.State().items()}


@pytest.mark.parametrize("num_stages", [exhaustive(4), exhaustive(2)])
def test_any_number_of_stages_trains_to_the_same_bytes(num_stages: int) -> None:
    expected, found = _trained(1), _trained(num_stages)
    assert found.keys() == expected.keys()
    assert [path for path in expected if found[path] != expected[path]] == []
    for kind in ("/gamma/ema", "/moving_mean", "/auxiliary_head/", "learner/"):
        assert any(kind in path for path in expected)


@pytest.mark.parametrize("scheme", [exhaustive("greedy"), exhaustive("overlapping")])
def test_each_cell_may_have_a_local_loss(scheme: str) -> None:
    """Covers the stem, cells that drop paths and pass tuples, and auxiliary head."""
    params = reduced_params(DIGITS)
    params.task.local.scheme = scheme
    given = params.input.Instantiate()
    task = with_local_losses(params.task, given).Instantiate()
    step = TrainStep(task)
    before = {k: v.numpy().tobytes() for k, v in step.State().items()}
    metrics = [step(batch) for batch in itertools.islice(batches(params), 2)][-1]
    num_heads = sum("local_" in p.name for p in task.params.pipeline.cell_tpl)
    assert sum(name.startswith("local_") for name in metrics) == 2 * num_heads
    for mean, _ in metrics.values():
        assert np.isfinite(mean)
    same = [k for k, v in step.State().items() if v.numpy().tobytes() == before[k]]
    assert not same, "training changes all saved values"


@pytest.mark.parametrize(
    ("name", "labels"),
    [("AmoebaNetDigits0To4", range(5)), ("AmoebaNetDigits5To9", range(5, 10))],
)
def test_each_half_has_its_own_digits(name: str, labels: range) -> None:
    cls: Any = model_registry.GetClass(f"image.digits.{name}")
    data = _params(f"image.digits.{name}").input.Instantiate()
    assert data.class_names == [str(label) for label in labels]
    assert data.num_classes == cls.NUM_CLASSES
    assert data.num_examples == cls.NUM_TRAIN_EXAMPLES
