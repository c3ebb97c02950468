"""A batch's loss and gradients do not depend on the layout of its sentences.

Computed in float64, so that what should be equal is so to 9 digits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.nested_map import NestedMap
from tests.models.transformer.small_models import (
    NUM_TOKENS,
    alone,
    assert_alike,
    metrics_and_gradients,
    pipelined_metrics_and_gradients,
    sentences,
    small_layer,
    translation_batch,
    translation_task,
)
from tests.support.cases import exhaustive
from tests.support.errors import fails

SOURCES = sentences([3, 5, 2, 4, 7, 1], seed=1)
TARGETS = sentences([4, 1, 5, 3, 6, 2], seed=2)


def one_a_row() -> NestedMap:
    return translation_batch(alone(SOURCES), alone(TARGETS))


def task(num_micro_batches: int = 1, splits: int = 1, **sizes: Any) -> Any:
    p = translation_task(tied=True, **sizes).Set(dtype=tf.float64)
    p.pipeline.Set(num_micro_batches=num_micro_batches, splits=splits)
    return p.Instantiate()


@pytest.fixture(scope="module")
def plain() -> Any:
    return metrics_and_gradients(task(), one_a_row())


def assert_same(found: Any, want: Any) -> None:
    for a, b in zip(found, want, strict=True):
        assert_alike(a, b, 1e-9)


@pytest.mark.parametrize("norm_first", [True, False])
def test_packed_sentences_are_as_alone(norm_first: bool) -> None:
    def pack(all_sentences: list) -> list:
        a, b, c, d, e, f = all_sentences
        return [[a, b], [c, d, f], [e]]

    model = task(layer_tpl=small_layer(norm_first=norm_first))
    batch = translation_batch(pack(SOURCES), pack(TARGETS), 9, 10)
    found = metrics_and_gradients(model, batch)
    assert_same(found, metrics_and_gradients(model, one_a_row()))


def test_more_padding_changes_nothing(plain: Any) -> None:
    longer = translation_batch(alone(SOURCES), alone(TARGETS), 13, 12)
    assert_same(metrics_and_gradients(task(), longer), plain)


def test_rows_of_nothing_but_padding_change_nothing(plain: Any) -> None:
    more = translation_batch([*alone(SOURCES), []], [*alone(TARGETS), []])
    assert_same(metrics_and_gradients(task(), more), plain)


def test_what_stands_in_padding_changes_not_a_byte() -> None:
    changed = one_a_row()
    for stream in changed.values():
        is_padding = stream.segment_ids == 0
        for key in ("ids", "segment_pos", "labels"):
            if key in stream:
                stream[key] = tf.where(is_padding, NUM_TOKENS - 2, stream[key])
    model = task()
    found, want = (metrics_and_gradients(model, b) for b in (changed, one_a_row()))
    tf.nest.map_structure(np.testing.assert_array_equal, found, want)


@pytest.mark.parametrize(("num_micro_batches", "splits"), [exhaustive(3, 2), (4, 2)])
def test_micro_batches_count_by_their_tokens(
    plain: Any, num_micro_batches: int, splits: int
) -> None:
    """They have different numbers of tokens; four of them are padded."""
    found = pipelined_metrics_and_gradients(
        task(num_micro_batches, splits), one_a_row()
    )
    assert_same(found, plain)


def test_the_loss_is_that_of_sentences_one_by_one(plain: Any) -> None:
    model, sums = task(), NestedMap()
    for source, target in zip(SOURCES, TARGETS, strict=True):
        one = translation_batch([[source]], [[target]], len(source), len(target))
        metrics, _ = metrics_and_gradients(model, one)
        for name, mean in metrics.items():
            sums[name] = sums.get(name, 0.0) + mean * len(target)
    num_tokens = sum(map(len, TARGETS))
    found = {name: total / num_tokens for name, total in sums.items()}
    assert_alike(found, plain[0], 1e-9)


def test_labels_are_smoothed_in_training_only() -> None:
    model = task()
    assert model.params.label_smoothing == 0.1
    trained, _ = metrics_and_gradients(model, one_a_row())
    with ForwardContext(do_eval=True):
        metrics = model.ComputeMetrics(model.Values(), one_a_row())
    assert float(metrics.loss[0]) == float(metrics.log_pplx[0])
    assert trained["log_pplx"] == pytest.approx(float(metrics.log_pplx[0]), rel=1e-9)
    assert trained["loss"] != trained["log_pplx"]


def test_label_smoothing_is_a_share() -> None:
    with fails(path="label_smoothing", got=1.5):
        translation_task().Set(label_smoothing=1.5).Instantiate()
