"""Sampling over a language model's layers, each on its stage's device.

    device 0 | a a   b b   a a   b b        a, b: groups of rows, a token at a time
    device 1 |     a a   b b   a a   b b

Each group has a loop of its own in one graph. While a group's token is on one device,
other groups' tokens are on the others. Groups are as even as possible, the larger ones
first. A row that begins reads its prompt first, many tokens at once.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.checks import check_counts
from lingvo_pipe.models.decoding.sampling import sample
from lingvo_pipe.models.transformer import incremental
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.task.protocols import Sampling, TextRows

Cells = Sequence[incremental.PlacedCell]
# Tokens of a prompt that are read at once, which bounds the memory it takes.
_CHUNK_SIZE = 64
# Of a group: the states of each layer.
States = list[NestedMap]


def init_groups(
    cells: Cells,
    num_rows: int | tf.Tensor,
    num_tokens: int | tf.Tensor,
    num_groups: int | None,
) -> list[States]:
    """Returns each group's states before the first token, for B rows of T tokens.

    If `num_groups` is None, there is a group for each device.

    Raises:
        ValueError: if the number of groups is below 1.
    """
    if num_groups is None:
        num_groups = len({cell.device for cell in cells})
    check_counts(num_groups=num_groups)
    return [
        incremental.init_states(cells, NestedMap(), size, num_tokens)
        for size in _group_sizes(num_rows, num_groups)
    ]


def extend_groups(
    cells: Cells,
    rows: TextRows,
    states: Sequence[States],
    sampling: Sampling,
    eos_id: int,
    num_steps: int | tf.Tensor,
) -> tuple[TextRows, list[States]]:
    """Continues the texts of all groups. See `ContinueTexts` of a GeneratingTask."""
    sizes = tf.stack(_group_sizes(tf.shape(rows.ids)[0], len(states)))
    fields = [tf.split(x, sizes, num=len(states)) for x in rows]
    groups = [TextRows(*group) for group in zip(*fields, strict=True)]

    def step(ids: tf.Tensor, states: Any, places: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return incremental.extend_step(cells, ids, states, places)

    def run() -> tuple[TextRows, list[States]]:
        extended = []
        for group, group_states in zip(groups, states, strict=True):
            placed = incremental.placed_states(cells, group_states)
            with tf.device(cells[-1].device):
                group, placed = _read_prompts(cells, group, placed)
                extended.append(
                    sample(step, placed, group, sampling, eos_id, num_steps)
                )
        of_groups, new_states = zip(*extended, strict=True)
        with tf.device(cells[-1].device):
            joined = (tf.concat(x, 0) for x in zip(*of_groups, strict=True))
            return TextRows(*joined), list(new_states)

    # With automatic control dependencies, a group's loop would wait for the one before.
    joined, new_states = tf.compat.v1.wrap_function(run, [])()
    return joined, [incremental.placed_states(cells, x) for x in new_states]


def _read_prompts(
    cells: Cells, rows: TextRows, states: States
) -> tuple[TextRows, States]:
    """Reads the prompts of rows that begin, but for their last tokens."""
    begins = tf.logical_and(rows.places == 0, rows.prompt_lengths > 1)
    chosen = tf.where(begins)[:, 0]
    lengths, ids = tf.gather(rows.prompt_lengths, chosen), tf.gather(rows.ids, chosen)
    # After a prompt, any tokens will do: their states are replaced.
    ids = tf.where(tf.sequence_mask(lengths, tf.shape(ids)[1]), ids, 0)
    end = tf.reduce_max(lengths - 1)

    def read(place: tf.Tensor, states: States) -> tuple[tf.Tensor, States]:
        chunk = ids[:, place : tf.minimum(place + _CHUNK_SIZE, end)]
        old = incremental.choose_rows(cells, states, chosen)
        new = incremental.read_tokens(cells, chunk, old, place)
        states = incremental.replace_rows(cells, states, chosen, new)
        return place + _CHUNK_SIZE, states

    # If no row begins, the maximum of none is below 0.
    start = (tf.constant(0), states)
    _, states = tf.while_loop(lambda place, _: place < end, read, start)
    places = tf.where(begins, rows.prompt_lengths - 1, rows.places)
    return rows._replace(places=places), states


def _group_sizes(num_rows: int | tf.Tensor, num_groups: int) -> list[Any]:
    return [(num_rows + num_groups - 1 - i) // num_groups for i in range(num_groups)]
