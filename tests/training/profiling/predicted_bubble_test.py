"""The predicted bubble agrees with formulas for layers before the cells."""

from __future__ import annotations

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
)

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
