"""A Transformer's logits token by token, as decoding needs them.

    source = run_source(cells, thetas, source)      all of the encoder, once
    states = init_states(cells, thetas, source, ...)
    logits, states = extend_step(cells, thetas, ids, states, time_step)     each step

The states are tensors of static shape with a row for each example, so hypotheses are
chosen among, or repeated, by gathering rows.

Shapes: B examples, S source tokens, V tokens in the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.models.transformer.streams import SOURCE, TARGET
from lingvo_pipe.models.transformer.transformer_layer import TransformerLayer
from lingvo_pipe.nested_map import NestedMap


def run_source(
    cells: Sequence[BaseLayer], thetas: Sequence[NestedMap], source: NestedMap
) -> NestedMap:
    """The state after the encoder.

    Args:
        cells: the layers of a translation model.
        thetas: for each its weights.
        source: a stream, `[B, S]` each.
    """
    state = NestedMap(source=source)
    for cell, theta in zip(cells, thetas, strict=True):
        if cell.params.stream == SOURCE:
            state = cell.FProp(theta, state)
    return state


def init_states(
    cells: Sequence[BaseLayer],
    thetas: Sequence[NestedMap],
    state: NestedMap,
    batch_size: int,
    max_length: int,
) -> list[NestedMap]:
    """What `extend_step` starts with; of static shape.

    Args:
        cells: the layers of a model.
        thetas: for each its weights.
        state: as of `run_source`; empty for a language model.
        batch_size: B.
        max_length: the most steps that there will be.
    """
    return [
        cell.InitStates(theta, state, batch_size, max_length)
        if _keeps_states(cell)
        else NestedMap()
        for cell, theta in zip(cells, thetas, strict=True)
    ]


def extend_step(
    cells: Sequence[BaseLayer],
    thetas: Sequence[NestedMap],
    ids: tf.Tensor,
    states: Sequence[NestedMap],
    time_step: tf.Tensor,
) -> tuple[tf.Tensor, list[NestedMap]]:
    """The logits of the tokens behind `ids`.

    Args:
        cells: the layers of a model.
        thetas: for each its weights.
        ids: `[B]`, the tokens at this step.
        states: as of `init_states` or of the step before.
        time_step: [] int32, from 0.

    Returns:
        `[B, V]`, and the states for the next step.
    """
    ids = ids[:, tf.newaxis]
    ones = tf.ones_like(ids)
    target = NestedMap(ids=ids, segment_ids=ones, segment_pos=ones * time_step)
    outputs, extended = NestedMap(target=target), list(states)
    for i, (cell, theta) in enumerate(zip(cells, thetas, strict=True)):
        if _keeps_states(cell):
            outputs, extended[i] = cell.ExtendStep(theta, outputs, states[i], time_step)
        elif cell.params.stream == TARGET:
            outputs = cell.FProp(theta, outputs)
    return outputs[:, 0], extended


def _keeps_states(cell: BaseLayer) -> bool:
    return isinstance(cell, TransformerLayer) and cell.params.stream == TARGET
