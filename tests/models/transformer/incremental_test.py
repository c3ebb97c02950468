"""Logits token by token equal the logits of all tokens at once."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import CopyFieldsTo
from lingvo_pipe.layers.attention import MultiHeadAttentionLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.dense import FeedForwardLayer
from lingvo_pipe.models.transformer.incremental import (
    choose_rows,
    extend_step,
    init_states,
    placed_cells,
    read_tokens,
    replace_rows,
    run_source,
)
from lingvo_pipe.models.transformer.streams import TARGET, as_stream, with_hidden
from lingvo_pipe.models.transformer.transformer_layer import TransformerLayer
from lingvo_pipe.nested_map import NestedMap
from tests.models.transformer.small_models import (
    alone,
    language_model_task,
    predicted,
    sentences,
    small_layer,
    translation_batch,
    translation_task,
)
from tests.support.cases import exhaustive
from tests.support.errors import fails

NUM_STEPS, ROOM = 5, 7
SOURCES, TARGETS = sentences([3, 5, 8]), sentences([NUM_STEPS] * 3, seed=2)


def stepped(cells: Any, state: NestedMap, ids: tf.Tensor) -> tf.Tensor:
    """Returns the logits of all steps; checks the states in each."""
    step = tf.function(
        lambda ids, states, t: extend_step(cells, ids, states, t), autograph=False
    )
    states = init_states(cells, state, ids.shape[0], ROOM)
    kinds = tf.nest.map_structure(lambda s: (s.shape, s.dtype), states)
    found = []
    for t in range(NUM_STEPS):
        logits, states = step(ids[:, t], states, tf.constant(t))
        assert tf.nest.map_structure(lambda s: (s.shape, s.dtype), states) == kinds
        found.append(logits)
    return tf.stack(found, 1)


@pytest.mark.parametrize("norm_first", [exhaustive(True), False])
@pytest.mark.parametrize(
    ("dtype", "state_dtype", "tolerance"),
    [
        exhaustive(tf.float32, None, 1e-5),
        (tf.float64, None, 1e-12),
        (tf.float64, tf.bfloat16, 1e-12),
    ],
)
def test_a_translation(
    norm_first: bool, dtype: tf.DType, state_dtype: Any, tolerance: float
) -> None:
    """Also if the pipeline rounds what its cells pass on."""
    p = translation_task(tied=True, layer_tpl=small_layer(norm_first=norm_first))
    p.pipeline.state_dtype = state_dtype
    task = p.Set(dtype=dtype).Instantiate()
    batch = translation_batch(alone(SOURCES), alone(TARGETS), 8, NUM_STEPS)
    cells = placed_cells(task.pipeline, task.vars.pipeline)
    with ForwardContext(do_eval=True):
        want = task.ComputePredictions(task.theta, batch)
        source = run_source(cells, as_stream(batch.source))
        got = stepped(cells, source, batch.target.ids)
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("state_dtype", [exhaustive(None), tf.bfloat16])
def test_a_text(state_dtype: Any) -> None:
    p = language_model_task().Set(dtype=tf.float64)
    p.pipeline.state_dtype = state_dtype
    task = p.Instantiate()
    batch = predicted(alone(TARGETS), NUM_STEPS).Transform(tf.constant)
    with ForwardContext(do_eval=True):
        want = task.ComputePredictions(task.theta, batch)
        cells = placed_cells(task.pipeline, task.vars.pipeline)
        got = stepped(cells, NestedMap(), batch.ids)
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


def test_a_prompt_is_read_in_any_chunks() -> None:
    """Also by some of the rows. Others keep what they have read."""
    task = language_model_task().Set(dtype=tf.float64).Instantiate()
    ids = predicted(alone(TARGETS), NUM_STEPS).Transform(tf.constant).ids
    cells = placed_cells(task.pipeline, task.vars.pipeline)
    with ForwardContext(do_eval=True):
        states = init_states(cells, NestedMap(), 3, ROOM)
        for t in range(NUM_STEPS):
            want, states = extend_step(cells, ids[:, t], states, tf.constant(t))
        states = init_states(cells, NestedMap(), 3, ROOM)
        for rows, ends in (([1], [0, 4]), ([2, 0], [0, 1, 3, 4])):
            for start, end in itertools.pairwise(ends):
                chunk = tf.gather(ids, rows)[:, start:end]
                old = choose_rows(cells, states, tf.constant(rows))
                new = read_tokens(cells, chunk, old, tf.constant(start))
                states = replace_rows(cells, states, tf.constant(rows), new)
        got, _ = extend_step(cells, ids[:, 4], states, tf.constant([4, 4, 4]))
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


def test_hypotheses_are_rows() -> None:
    """Chosen rows continue like the rows they were chosen from."""
    task = translation_task().Instantiate()
    cells = placed_cells(task.pipeline, task.vars.pipeline)
    batch = translation_batch(alone(SOURCES), alone(TARGETS), 8, NUM_STEPS)
    # Two hypotheses of each of three sentences.
    twice = [0, 0, 1, 1, 2, 2]
    chosen = [1, 0, 3, 3, 5, 4]
    first = tf.constant([2, 3, 4, 5, 6, 7])
    second = tf.constant([7, 6, 5, 4, 3, 2])
    with ForwardContext(do_eval=True):
        source = run_source(cells, as_stream(batch.source))
        states = init_states(cells, source, 6, ROOM)
        _, states = extend_step(cells, first, states, tf.constant(0))
        states = choose_rows(cells, states, tf.constant(chosen))
        got, _ = extend_step(cells, second, states, tf.constant(1))

        sources = batch.source.Transform(lambda x: tf.gather(x, twice))
        source = run_source(cells, as_stream(sources))
        states = init_states(cells, source, 6, ROOM)
        ids = tf.gather(first, chosen)
        _, states = extend_step(cells, ids, states, tf.constant(0))
        want, _ = extend_step(cells, second, states, tf.constant(1))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert states[-2].memory.key.shape[0] == 6


class Reversed(TransformerLayer):
    """A layer that turns the channels around, but not token by token."""

    def FProp(self, theta: NestedMap, state: NestedMap) -> NestedMap:
        state = super().FProp(theta, state)
        return with_hidden(state, TARGET, tf.reverse(state[TARGET].hidden, [-1]))


class Louder(MultiHeadAttentionLayer):
    def FProp(self, *args: Any) -> tf.Tensor:
        return -5.0 * super().FProp(*args)


class LouderByToken(MultiHeadAttentionLayer):
    def Attend(self, *args: Any) -> tf.Tensor:
        return -5.0 * super().Attend(*args)


class Summed(FeedForwardLayer):
    """A feed-forward part that mixes tokens."""

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        return super().FProp(theta, tf.cumsum(x, axis=1))


class Doubled(FeedForwardLayer):
    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        return 2.0 * super().FProp(theta, x)


@pytest.mark.parametrize("model", [language_model_task, exhaustive(translation_task)])
@pytest.mark.parametrize(
    ("part", "kind", "is_allowed"),
    [
        ("", Reversed, False),
        ("attention_tpl", Louder, False),
        ("attention_tpl", LouderByToken, True),
        ("attention_tpl", Doubled, False),
        ("feed_forward_tpl", Summed, False),
        ("feed_forward_tpl", MultiHeadAttentionLayer, False),
        ("feed_forward_tpl", Doubled, True),
    ],
)
def test_layers_that_differ_token_by_token_are_refused(
    model: Any, part: str, kind: Any, is_allowed: bool
) -> None:
    p, kind_params = model(num_layers=1), kind.Params()
    cells = p.pipeline.cell_tpl
    if part:
        CopyFieldsTo(cells[-2].Get(part), kind_params, ignore_unknown_keys=True)
        if "hidden_dim" in kind_params:
            kind_params.hidden_dim = 4
        cells[-2].Set(**{part: kind_params})
    else:
        cells[-2] = CopyFieldsTo(cells[-2], kind_params)
    task = p.Instantiate()
    refused = fails(path=task.pipeline.cells[-2].path)
    with contextlib.nullcontext() if is_allowed else refused:
        placed_cells(task.pipeline, task.vars.pipeline)
