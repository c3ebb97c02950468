"""Chance is named, and small, early or one-sided evaluations are no alarm."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import tensorflow as tf

from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.eval.chance import ClassWeights

MIXED = [0, 1, 1, 2] * 8
CHANCE = {"loss": 1.1, "accuracy": 0.5}


@pytest.mark.parametrize(
    ("labels", "weights", "step", "metrics", "is_warned"),
    [
        (MIXED, [1.0] * 32, 100, CHANCE, True),
        (MIXED, [1.0] * 32, 100, {"sparse_categorical_accuracy": 0.1}, True),
        (MIXED, [1.0] * 32, 100, {"accuracy": 17 / 32}, False),
        (MIXED, [3.0, 1.0, 1.0, 1.0] * 8, 100, CHANCE, True),
        (MIXED, [1.0, 0.5, 0.0, 1.0] * 8, 100, CHANCE, False),
        (MIXED, [1.0] * 32, 100, {"loss": 0.1}, False),
        (MIXED, [1.0] * 32, 99, CHANCE, False),
        (MIXED[:16], [1.0] * 16, 100, CHANCE, False),
        ([1] * 32, [1.0] * 32, 100, {"accuracy": 1.0}, False),
        ([[1]] * 32, [1.0] * 32, 100, CHANCE, False),
    ],
)
def test_chance_is_the_share_of_the_most_frequent_class(
    labels: list[int],
    weights: list[float],
    step: int,
    metrics: Mapping[str, float],
    is_warned: bool,
) -> None:
    classes, half = ClassWeights(), len(labels) // 2
    for part in (slice(half), slice(half, None)):
        label, weight = tf.constant(labels[part]), tf.constant(weights[part])
        classes.add(NestedMap(label=label, weight=weight))
    classes.add(NestedMap(ids=tf.zeros([4, 3])))
    assert bool(classes.warning(step, metrics)) == is_warned
