"""The predicted bubble agrees with formulas for layers before the cells."""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path

import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.models.images.image_classifier import ImageClassifier
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.devices import stage_devices  # noqa: F401  Asks for several.
from lingvo_pipe.training.profiling.predicted_bubble import (
    PredictedBubble,
    predict_bubble,
    predict_from_spec,
    uneven_stages,
)
from lingvo_pipe.training.task.base_task import BaseTask
from tests.training.toy_run import Input, batch, make_task, run

DIM = 6


def _dense() -> InstantiableParams:
    """Returns a layer of one unit of work."""
    return FCLayer.Params().Set(input_dim=DIM, output_dim=DIM)


def _predict(
    num_before: int, boundaries: list[int], num_micro_batches: int, batch_size: int = 8
) -> PredictedBubble:
    p = ImageClassifier.Params().Set(name="task")
    p.pipeline.Set(
        before_tpl=[_dense() for _ in range(num_before)],
        cell_tpl=[_dense() for _ in range(boundaries[-1])],
        splits=boundaries,
        num_micro_batches=num_micro_batches,
        recompute="never",
    )
    with tf.Graph().as_default():
        batch = NestedMap(
            image=tf.zeros([batch_size, DIM]),
            label=tf.zeros([batch_size], tf.int32),
            weight=tf.ones([batch_size]),
        )
        return predict_bubble(p.Instantiate(), batch)


@pytest.mark.parametrize("num_before", [0, 1, 3])
@pytest.mark.parametrize("num_micro_batches", [1, 4])
def test_layers_before_run_alone(num_before: int, num_micro_batches: int) -> None:
    """K even stages take M + K - 1 micro-batches, the layers before M."""
    num_stages = 3
    predicted = _predict(num_before, [1, 2, 3], num_micro_batches)
    work = num_stages + num_before
    assert predicted.shares == pytest.approx(
        [(1 + num_before) / work, 1 / work, 1 / work]
    )
    seconds = (1 + num_before) * num_micro_batches + num_stages - 1
    bubble = 1 - work * num_micro_batches / (num_stages * seconds)
    assert predicted.bubble_fraction == pytest.approx(bubble)


def test_one_stage_has_no_bubble() -> None:
    predicted = _predict(2, [3], 4)
    assert predicted.shares == [1.0]
    assert predicted.bubble_fraction == pytest.approx(0.0)


def _task(dims: list[int], splits: int | list[int]) -> BaseTask:
    p = ImageClassifier.Params().Set(name="task")
    pairs = itertools.pairwise([3, *dims])
    cells = [FCLayer.Params().Set(input_dim=a, output_dim=b) for a, b in pairs]
    p.pipeline.Set(cell_tpl=cells, splits=splits, num_micro_batches=2)
    return p.Set(train=make_task().params.train.Copy()).Instantiate()


@pytest.mark.parametrize(
    ("dims", "splits", "named"),
    [
        ([40, 40, 40, 2, 2, 2], 2, r"^Stage 0 of 2 has 9\d%.*\[2, 6\].* \d\d%\.$"),
        ([4, 40, 40, 40, 2], [1, 5], r"^Stage 1 of 2 has 100%.*\[3, 5\]"),
        ([40, 40, 2], [2, 3], r"^Stage 0 of 2 has 9\d%.* cell 1 alone has 8\d%"),
        ([6, 6, 6, 6], 2, r"^$"),
        ([4, 2], 1, r"^$"),
    ],
)
def test_uneven_stages_are_named_with_more_even_ones(
    dims: list[int], splits: int | list[int], named: str
) -> None:
    task, spec = _task(dims, splits), Input(batch(0)).TrainBatches().element_spec
    predicted = predict_from_spec(task, spec)
    assert predicted is not None
    text = uneven_stages(task, predicted)
    assert re.search(named, text)
    if "splits (list)" in text:
        even = ast.literal_eval(re.search(r"\[.*\]", text)[0])  # type: ignore[index]
        evener = predict_from_spec(_task(dims, even), spec)
        assert evener is not None
        assert max(evener.shares) < 0.9 * max(predicted.shares)
        assert f"{max(evener.shares):.0%}" in text


@pytest.mark.exhaustive
def test_a_run_logs_uneven_stages_at_its_start(tmp_path: Path) -> None:
    logged: list[str] = []
    run(
        _task([40, 40, 40, 2, 2, 2], 2),
        Input(*map(batch, range(3))),
        tmp_path,
        logged.append,
    )
    assert [line.startswith("Stage 0 of ") for line in logged[:2]] == [False, True]
