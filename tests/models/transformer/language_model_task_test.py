"""A loss does not depend on the layout of texts, nor texts on devices."""

from __future__ import annotations

from typing import Any

import keras
import pytest
import tensorflow as tf

from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.models.decoding.sampling import draw_tokens, uniform_draws
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.task.protocols import Sampling
from tests.models.transformer.continued_texts import EOS, continued, continuous_batch
from tests.models.transformer.small_models import (
    alone,
    assert_alike,
    language_model_task,
    metrics_and_gradients,
    packed,
    pipelined_metrics_and_gradients,
    predicted,
    sentences,
)
from tests.support.cases import exhaustive

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


def by_all_tokens(model: Any, text: list[int], number: int, sampling: Sampling) -> Any:
    """Returns a text with its next tokens, each from a run on all tokens before it."""
    (draws,) = uniform_draws(sampling, tf.constant([number])).numpy()
    for draw in draws:
        state = packed([[text]], len(text)).Transform(tf.constant)
        with ForwardContext(do_eval=True):
            logits = model.ComputePredictions(model.Values(), state)[:, -1]
        text = [*text, *draw_tokens(logits, draw[None], sampling).numpy().tolist()]
        if text[-1] == EOS:
            break
    return text


@pytest.mark.parametrize("splits", [exhaustive(1), 2, exhaustive(3)])
def test_generated_tokens_are_what_the_whole_text_predicts(splits: int) -> None:
    """There are as many groups as devices, with fewer rows than groups too."""
    keras.utils.set_random_seed(1)
    model, sampling = task(splits=splits), Sampling(5, temperature=1.5, top_p=0.9)
    texts = [[1], [1, 4, 2, 5], [1, 7, 7], [1], [1, 3]]
    batch = continuous_batch(model, 3)
    for number in (len(texts), 1):
        assert continued(batch, texts[:number], sampling) == [
            by_all_tokens(model, text, i, sampling)
            for i, text in enumerate(texts[:number])
        ]
