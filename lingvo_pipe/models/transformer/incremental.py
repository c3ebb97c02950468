"""Incremental logits of a pipelined Transformer: token by token, for decoding.

    cells = placed_cells(pipeline, theta)
    source = run_source(cells, source)                  all of the encoder, once
    states = init_states(cells, source, ...)
    states = read_tokens(cells, ids, states, time_step)         of a prompt
    logits, states = extend_step(cells, ids, states, time_step)          each step
    states = choose_rows(cells, states, rows)           of the surviving hypotheses

States are tensors of static shape on their layer's device. States of the target have a
row for each hypothesis, and states of the source a row for each example.

Shapes: B rows of T tokens of the target, V tokens in the vocabulary.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.layers.attention import dim_size
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.sequential import as_state
from lingvo_pipe.models.transformer.logits import LogitsLayer
from lingvo_pipe.models.transformer.step_check import check_steps
from lingvo_pipe.models.transformer.streams import SOURCE, TARGET, StreamEmbeddingLayer
from lingvo_pipe.models.transformer.transformer_layer import TransformerLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.devices.stage_devices import must_compile
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer

_KINDS = (StreamEmbeddingLayer, TransformerLayer, LogitsLayer)


class PlacedCell(NamedTuple):
    """A layer with its weights and its device."""

    layer: BaseLayer
    theta: NestedMap  # in the dtypes of the layer's computation
    device: str | None  # its stage's full name; if None, TensorFlow chooses
    state_dtype: tf.DType | None  # dtype of its outputs; see `as_state`

    @property
    def has_states(self) -> bool:
        """True for a layer that needs the past tokens of the target."""
        is_attention = isinstance(self.layer, TransformerLayer)
        return is_attention and self.layer.params.stream == TARGET


def placed_cells(
    pipeline: PipeliningLayer, theta: NestedMap, on_stages: bool = True
) -> list[PlacedCell]:
    """Returns the layers of a pipeline, including the prologue.

    Each layer is on its stage's device or, without `on_stages`, where TensorFlow puts
    it. Weights that lie elsewhere are copied to that device once.

    Raises:
        ValueError: if a layer can't run token by token, or a device can't run loops.
    """
    stages = [0] * len(pipeline.before)
    stages += map(pipeline.stage_of_cell, range(len(pipeline.cells)))
    layers = [*pipeline.before, *pipeline.cells]
    thetas = [*theta.before, *theta.cells]
    devices = [pipeline.devices[stage] if on_stages else None for stage in stages]
    # The last layer's outputs go to no other layer.
    dtypes = [*[pipeline.params.state_dtype] * (len(layers) - 1), None]
    cells = zip(layers, thetas, devices, dtypes, strict=True)
    return [_placed(PlacedCell(*cell)) for cell in cells]


def _placed(cell: PlacedCell) -> PlacedCell:
    layer, device = cell.layer, cell.device
    if not isinstance(layer, _KINDS):
        names = ", ".join(kind.__name__ for kind in _KINDS)
        expected = f"{names} for decoding token by token"
        got = Words(type(layer).__name__)
        raise UserValueError(path=layer.path, expected=expected, got=got)
    if cell.has_states and not layer.params.causal:
        expected = "True for decoding token by token"
        hint = "Train the model with causal=True."
        raise UserValueError(
            path=f"{layer.path}.causal", expected=expected, got=False, hint=hint
        )
    if device is not None and must_compile(device):
        expected = "a CPU or GPU for decoding"
        hint = "Choose other --devices: a checkpoint fits any."
        raise UserValueError(path=layer.path, expected=expected, got=device, hint=hint)
    with tf.device(device):
        if layer.params.stream == TARGET:
            check_steps(layer)
        local = tf.nest.map_structure(tf.identity, layer.CastTheta(cell.theta))
    return cell._replace(theta=local)


def run_source(cells: Sequence[PlacedCell], source: NestedMap) -> NestedMap:
    """Returns the encoder's outputs for a source with one example in each row."""
    state = NestedMap(source=source)
    for cell in cells:
        if cell.layer.params.stream == SOURCE:
            with tf.device(cell.device):
                outputs = cell.layer.FProp(cell.theta, state)
                state = as_state(outputs, cell.state_dtype)
    return state


def init_states(
    cells: Sequence[PlacedCell], state: NestedMap, batch_size: int, max_length: int
) -> list[NestedMap]:
    """Returns the initial states for at most `max_length` calls of `extend_step`.

    `state` comes from `run_source`, and is empty for a language model. B, the batch
    size, is a multiple of the source's number of examples. Equally many consecutive
    rows belong to each example.
    """
    states = [NestedMap() for _ in cells]
    for i, cell in enumerate(cells):
        if cell.has_states:
            with tf.device(cell.device):
                states[i] = cell.layer.InitStates(
                    cell.theta, state, batch_size, max_length
                )
    return states


def placed_states(
    cells: Sequence[PlacedCell], states: Sequence[NestedMap]
) -> list[NestedMap]:
    """Returns the states, each on its layer's device: a loop keeps its values there."""
    placed = []
    for cell, cell_states in zip(cells, states, strict=True):
        with tf.device(cell.device):
            placed.append(cell_states.Transform(tf.identity))
    return placed


def extend_step(
    cells: Sequence[PlacedCell],
    ids: tf.Tensor,
    states: Sequence[NestedMap],
    time_step: tf.Tensor,
) -> tuple[tf.Tensor, list[NestedMap]]:
    """Runs one token of each row through the decoder: returns logits and new states.

    `ids` are `[B]`, `time_step` `[B]` or `[]`, and the next tokens' logits `[B, V]`.
    """
    outputs, extended = _run(cells, ids[:, tf.newaxis], states, time_step)
    with tf.device(cells[-1].device):
        return outputs[:, 0], extended


def read_tokens(
    cells: Sequence[PlacedCell],
    ids: tf.Tensor,
    states: Sequence[NestedMap],
    time_step: tf.Tensor,
) -> list[NestedMap]:
    """Returns the states after tokens `[B, T]`, the first one at `time_step`, `[]`."""
    with_states = [i for i, cell in enumerate(cells) if cell.has_states]
    end = max(with_states, default=-1) + 1  # Cells after it would make logits.
    _, extended = _run(cells[:end], ids, states[:end], time_step)
    return [*extended, *states[end:]]


def _run(
    cells: Sequence[PlacedCell],
    ids: tf.Tensor,
    states: Sequence[NestedMap],
    time_step: tf.Tensor,
) -> tuple[Any, list[NestedMap]]:
    """Runs tokens `[B, T]` through cells of the decoder: returns outputs and states."""
    ones, steps = tf.ones_like(ids), tf.range(dim_size(ids, 1))
    target = NestedMap(
        ids=ids,
        segment_ids=ones,
        segment_pos=ones * (tf.reshape(time_step, [-1, 1]) + steps),
    )
    outputs, extended = NestedMap(target=target), list(states)
    for i, cell in enumerate(cells):
        with tf.device(cell.device):
            if cell.has_states:
                outputs, extended[i] = cell.layer.ExtendStep(
                    cell.theta, outputs, states[i], time_step
                )
            elif cell.layer.params.stream == TARGET:
                outputs = cell.layer.FProp(cell.theta, outputs)
            outputs = as_state(outputs, cell.state_dtype)
    return outputs, extended


def replace_rows(
    cells: Sequence[PlacedCell],
    states: Sequence[NestedMap],
    rows: tf.Tensor,
    new_states: Sequence[NestedMap],
) -> list[NestedMap]:
    """Returns the states with row i of `new_states` in place of row `rows[i]`."""
    replaced = list(states)
    for i, cell in enumerate(cells):
        if cell.has_states:
            with tf.device(cell.device):
                own_states = tf.nest.map_structure(
                    lambda x, y: tf.tensor_scatter_nd_update(x, rows[:, None], y),
                    states[i].own,
                    new_states[i].own,
                )
                replaced[i] = NestedMap(states[i], own=own_states)
    return replaced


def choose_rows(
    cells: Sequence[PlacedCell], states: Sequence[NestedMap], rows: tf.Tensor
) -> list[NestedMap]:
    """Returns the states with row `rows[i]` as row i.

    With an encoder, both are rows of the same example.
    """
    chosen = list(states)
    for i, cell in enumerate(cells):
        if cell.has_states:
            with tf.device(cell.device):
                own_states = tf.nest.map_structure(
                    lambda x: tf.gather(x, rows), states[i].own
                )
                chosen[i] = NestedMap(states[i], own=own_states)
    return chosen
