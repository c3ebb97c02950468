"""A batch's loss does not depend on the layout of its texts."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.nested_map import NestedMap
from tests.models.transformer.small_models import (
    alone,
    assert_alike,
    language_model_task,
    metrics_and_gradients,
    pipelined_metrics_and_gradients,
    predicted,
    sentences,
)

TEXTS = sentences([3, 6, 2, 5], seed=1)


def task(**pipeline: Any) -> Any:
    p = language_model_task().Set(dtype=tf.float64)
    p.pipeline.Set(**pipeline)
    return p.Instantiate()


def batch(rows: Any, num_tokens: int) -> NestedMap:
    return predicted(rows, num_tokens).Transform(tf.constant)


@pytest.mark.parametrize(
    ("rows", "num_tokens"),
    [
        (alone(TEXTS), 9),
        ([[TEXTS[0], TEXTS[1]], [TEXTS[2], TEXTS[3]]], 10),
        ([TEXTS[::-1]], 16),
    ],
)
def test_padded_and_packed_texts_are_as_alone(rows: Any, num_tokens: int) -> None:
    model = task()
    found = metrics_and_gradients(model, batch(rows, num_tokens))
    want = metrics_and_gradients(model, batch(alone(TEXTS), 6))
    for a, b in zip(found, want, strict=True):
        assert_alike(a, b, 1e-9)
    assert found[0]["loss"] == found[0]["log_pplx"]


def test_micro_batches_count_by_their_tokens() -> None:
    whole = batch(alone(TEXTS), 6)
    want = metrics_and_gradients(task(), whole)
    found = pipelined_metrics_and_gradients(task(num_micro_batches=3, splits=2), whole)
    for a, b in zip(found, want, strict=True):
        assert_alike(a, b, 1e-9)
