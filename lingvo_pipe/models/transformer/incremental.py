"""A Transformer's logits token by token, as decoding needs them.

    source = run_source(cells, source)                  all of the encoder, once
    states = init_states(cells, source, ...)
    logits, states = extend_step(cells, ids, states, time_step)          each step
    states = choose_rows(cells, states, rows)           of hypotheses that go on

The states are tensors of static shape, each on the device of its layer, with a row for
each hypothesis of the target, and for each example of the source.

Shapes: B rows of the target, S source tokens, V tokens in the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from lingvo_pipe.models.transformer.placed_cell import PlacedCell
from lingvo_pipe.models.transformer.streams import SOURCE, TARGET
from lingvo_pipe.models.transformer.transformer_layer import TransformerLayer
from lingvo_pipe.nested_map import NestedMap


def run_source(cells: Sequence[PlacedCell], source: NestedMap) -> NestedMap:
    """The state after the encoder.

    Args:
        cells: the layers of a translation model.
        source: a stream of `[., S]`, with a row for each example.
    """
    state = NestedMap(source=source)
    for cell in cells:
        if cell.layer.params.stream == SOURCE:
            with tf.device(cell.device):
                state = cell.layer.FProp(cell.theta, state)
    return state


def init_states(
    cells: Sequence[PlacedCell], state: NestedMap, batch_size: int, max_length: int
) -> list[NestedMap]:
    """What `extend_step` starts with; of static shape.

    Args:
        cells: the layers of a model.
        state: as of `run_source`; empty for a language model.
        batch_size: B, a multiple of the number of examples in `state`: consecutive rows
            are of one example.
        max_length: the most steps that there will be.
    """
    states = []
    for cell in cells:
        with tf.device(cell.device):
            states.append(
                cell.layer.InitStates(cell.theta, state, batch_size, max_length)
                if _keeps_states(cell)
                else NestedMap()
            )
    return states


def extend_step(
    cells: Sequence[PlacedCell],
    ids: tf.Tensor,
    states: Sequence[NestedMap],
    time_step: tf.Tensor,
) -> tuple[tf.Tensor, list[NestedMap]]:
    """The logits of the tokens behind `ids`.

    Args:
        cells: the layers of a model.
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
    for i, cell in enumerate(cells):
        with tf.device(cell.device):
            if _keeps_states(cell):
                outputs, extended[i] = cell.layer.ExtendStep(
                    cell.theta, outputs, states[i], time_step
                )
            elif cell.layer.params.stream == TARGET:
                outputs = cell.layer.FProp(cell.theta, outputs)
    with tf.device(cells[-1].device):
        return outputs[:, 0], extended


def choose_rows(
    cells: Sequence[PlacedCell], states: Sequence[NestedMap], rows: tf.Tensor
) -> list[NestedMap]:
    """The states of other rows, each of the same example as the row it stands for.

    What is kept of the source is the same for all rows of an example, and stays.

    Args:
        cells: the layers of a model.
        states: as of `extend_step`.
        rows: `[B]`, which row each is to go on from.
    """
    chosen = list(states)
    for i, cell in enumerate(cells):
        if _keeps_states(cell):
            with tf.device(cell.device):
                own = states[i].own.Transform(lambda kept: tf.gather(kept, rows))
                chosen[i] = NestedMap(states[i], own=own)
    return chosen


def _keeps_states(cell: PlacedCell) -> bool:
    is_attention = isinstance(cell.layer, TransformerLayer)
    return is_attention and cell.layer.params.stream == TARGET
