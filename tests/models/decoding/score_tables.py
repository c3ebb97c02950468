"""A model that is a table: log probabilities of the next token after every prefix.

Prefixes are the nodes of a tree; the child of node n by token v is n·V + 1 + v.

Shapes: B examples, P prefixes, V tokens, T tokens at most.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from lingvo_pipe.models.decoding.beam_search import (
    Hypotheses,
    beam_search,
    length_penalties,
)

EOS = 1

Table = np.ndarray  # [B, P, V]


class Found(NamedTuple):
    """An ended sequence, the end token included."""

    ids: list[int]
    log_prob: np.floating
    score: np.floating


def random_table(
    batch_size: int,
    num_tokens: int,
    max_length: int,
    seed: int,
    kind: str = "random",
    dtype: Any = np.float32,
) -> Table:
    """Returns a table: `random`; `tied`, of few values with exact sums; or `barred`."""
    draw = np.random.default_rng(seed)
    num_prefixes = sum(num_tokens**t for t in range(max_length))
    shape = [batch_size, num_prefixes, num_tokens]
    if kind == "tied":
        return -0.5 * draw.integers(0, 3, shape).astype(dtype)
    logits = 2 * draw.normal(size=shape).astype(dtype)
    if kind == "barred":
        logits[draw.random(shape) < 0.3] = -np.inf
        logits[:, :, EOS] = np.maximum(logits[:, :, EOS], -9)
    return tf.nn.log_softmax(logits).numpy()


def search(
    table: Table,
    max_lengths: Sequence[int],
    num_steps: tf.Variable | None = None,
    **arguments: Any,
) -> Hypotheses:
    """Runs beam search; adds to `num_steps`."""
    batch_size, _, num_tokens = table.shape
    width = arguments["width"]
    counter = tf.Variable(0) if num_steps is None else num_steps

    def step(ids: Any, nodes: Any, t: Any) -> Any:
        with tf.control_dependencies([counter.assign_add(1)]):
            ids = tf.identity(ids)
        nodes = tf.where(t == 0, tf.zeros_like(nodes), nodes * num_tokens + 1 + ids)
        examples = tf.repeat(tf.range(batch_size), width)
        # A node outside of the tree belongs to an ended hypothesis.
        rows = tf.minimum(nodes, table.shape[1] - 1)
        return tf.gather_nd(table, tf.stack([examples, rows], -1)), nodes

    @tf.function(autograph=False)
    def run(first_ids: Any, max_lengths: Any) -> Hypotheses:
        return beam_search(
            step,
            tf.gather,
            tf.zeros([batch_size * width], tf.int32),
            first_ids,
            max_lengths,
            eos_id=EOS,
            dtype=tf.as_dtype(table.dtype),
            **arguments,
        )

    first = tf.fill([batch_size], 7)  # Which the table does not heed.
    found = run(first, tf.constant(max_lengths, tf.int32))
    return Hypotheses(*(value.numpy() for value in found))


def found_of(found: Hypotheses, example: int) -> list[Found]:
    """Returns the sequences of one example."""
    all_found = []
    for ids, length, log_prob, score in zip(*(x[example] for x in found), strict=True):
        assert not np.any(ids[length:])
        if length:
            all_found.append(Found(ids[:length].tolist(), log_prob, score))
        else:
            assert score == log_prob == -np.inf
    return all_found


def penalty(table: Table, length: int, alpha: float) -> np.floating:
    """Returns GNMT's penalty in the table's dtype."""
    return table.dtype.type(length_penalties(alpha, length)[length])


def every_sequence(table: Table, max_length: int, alpha: float) -> Iterator[Found]:
    """Returns all sequences of an example `[P, V]`, with their scores."""
    tokens = range(table.shape[1])
    words = [v for v in tokens if v != EOS]
    for length in range(1, max_length + 1):
        for prefix in itertools.product(words, repeat=length - 1):
            node, log_prob = 0, table.dtype.type(0)
            for v in (*prefix, EOS):
                log_prob += table[node, v]
                node = node * len(tokens) + 1 + v
            if log_prob > -np.inf:
                score = log_prob / penalty(table, length, alpha)
                yield Found([*prefix, EOS], log_prob, score)


def beam_by_lists(
    table: Table, max_length: int, width: int, num_hypotheses: int, alpha: float
) -> list[Found]:
    """Searches an example `[P, V]` to its maximal length, without early end."""
    num_tokens = table.shape[1]
    live: list[Any] = [([], 0, table.dtype.type(0))]
    ended: list[Found] = []
    for t in range(1, max_length + 1):
        allowed = [EOS] if t == max_length else range(num_tokens)
        extended = [
            ([*ids, v], node * num_tokens + 1 + v, log_prob + table[node, v])
            for ids, node, log_prob in live
            for v in allowed
        ]
        # Sorting keeps the order of equals.
        extended = [e for e in extended if e[2] > -np.inf]
        extended = sorted(extended, key=lambda e: -e[2])[:width]
        live = [e for e in extended if e[0][-1] != EOS]
        ended += [
            Found(ids, log_prob, log_prob / penalty(table, t, alpha))
            for ids, _, log_prob in extended
            if ids[-1] == EOS
        ]
    return sorted(ended, key=lambda found: -found.score)[:num_hypotheses]
