"""Beam search: likely sequences of a model that scores the next token.

Each step extends the W hypotheses of each example by every token of the vocabulary and
keeps the W best of all. Those among them that end leave the beam (Sutskever et al.,
1409.3215, section 3.2); the next step fills it up again. So a beam of width 1 is greedy
search, and one that has room for all sequences finds the best of them.

Hypotheses that go on are compared by their probability, for they are of one length;
those that ended by a score with GNMT's length penalty. At an example's greatest length
nothing but the end token is allowed, so that every sequence ends.

The search is over when no hypothesis that goes on can enter the best that ended. Its
log probability can but fall, and the penalty be no more than at the greatest length.
Other examples of the batch then go on without changing this one's result. Of equals
the earlier one stays, then the one of the better parent, then of the smaller token.

Shapes: B examples, W hypotheses of each in the beam, N sequences returned, T tokens at
most, V tokens in the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from lingvo_pipe.models.decoding.hypotheses import Hypotheses, best_of, no_hypotheses
from lingvo_pipe.models.decoding.length_penalty import length_penalties

# (ids [B·W], states, step number) -> (log probabilities [B·W, V], states)
Step = Callable[[tf.Tensor, Any, tf.Tensor], tuple[tf.Tensor, Any]]
# (states, rows [B·W]) -> the states of these rows
ChooseRows = Callable[[Any, tf.Tensor], Any]


class _Beam(NamedTuple):
    """What goes on: `[B, W, T]`, `[B, W]` and `[B, W]`; -inf where there is nothing."""

    ids: tf.Tensor
    last_ids: tf.Tensor
    log_probs: tf.Tensor


def beam_search(
    step: Step,
    choose_rows: ChooseRows,
    states: Any,
    first_ids: tf.Tensor,
    max_lengths: tf.Tensor,
    *,
    max_length: int,
    eos_id: int,
    width: int,
    num_hypotheses: int = 1,
    length_penalty: float = 0.0,
    dtype: tf.DType = tf.float32,
) -> Hypotheses:
    """Searches in one loop of the graph, all examples side by side.

    States stay on the devices on which they are given and returned. Operations of the
    step that none of its results depends on do not run.

    Args:
        step: the model: from the tokens at a step to the log probabilities, none of
            them above 0, of those behind. Row b·W + w is hypothesis w of example b.
        choose_rows: what the states of other rows would be; rows stay within their
            example.
        states: tensors of static shape for the first step.
        first_ids: `[B]` int32, B being static: what is read first. It is no part of a
            hypothesis.
        max_lengths: `[B]` int32, from 1 to T: the most tokens of each example's
            sequences, the end token counted.
        max_length: T.
        eos_id: the end token.
        width: W.
        num_hypotheses: N, at most W.
        length_penalty: GNMT's α.
        dtype: of the log probabilities.

    Returns:
        The best sequences.

    Raises:
        ValueError: if a number is out of its range.
    """
    _check(width, num_hypotheses)
    penalties = tf.constant(length_penalties(length_penalty, max_length), dtype)
    greatest = tf.gather(penalties, max_lengths)

    def can_improve(t: tf.Tensor, beam: _Beam, ended: Hypotheses, _: Any) -> tf.Tensor:
        reachable = tf.reduce_max(beam.log_probs, 1) / greatest
        improves = tf.reduce_any(reachable > ended.scores[:, -1])
        return tf.logical_and(t < max_length, improves)

    def extend(
        t: tf.Tensor, beam: _Beam, ended: Hypotheses, states: Any
    ) -> tuple[tf.Tensor, _Beam, Hypotheses, Any]:
        log_probs, states = step(tf.reshape(beam.last_ids, [-1]), states, t)
        log_probs = _only_allowed(log_probs, t + 1 >= max_lengths, eos_id, width)
        parents, found = _best_extensions(beam, log_probs, t)
        ends = tf.equal(found.last_ids, eos_id)
        lowest = tf.constant(float("-inf"), dtype)
        new = Hypotheses(
            ids=found.ids,
            lengths=tf.fill(ends.shape, t + 1),
            log_probs=found.log_probs,
            scores=tf.where(ends, found.log_probs / penalties[t + 1], lowest),
        )
        going_on = tf.where(ends, lowest, found.log_probs)
        rows = parents + tf.range(parents.shape[0])[:, tf.newaxis] * width
        return (
            t + 1,
            found._replace(log_probs=going_on),
            best_of(ended, new),
            choose_rows(states, tf.reshape(rows, [-1])),
        )

    batch_size = first_ids.shape[0]
    beam = _first_beam(first_ids, width, max_length, dtype)
    ended = no_hypotheses(batch_size, num_hypotheses, max_length, dtype)
    start = (tf.constant(0), beam, ended, states)
    # In a graph with automatic control dependencies each value would be handed on by
    # an operation on the loop's device: the states would go there in every step.
    search = tf.compat.v1.wrap_function(
        lambda: tf.while_loop(can_improve, extend, start)[2], []
    )
    return Hypotheses(*search())


def _first_beam(
    first_ids: tf.Tensor, width: int, max_length: int, dtype: tf.DType
) -> _Beam:
    """One hypothesis of each example, empty and certain."""
    shape = [first_ids.shape[0], width]
    logs = tf.math.log(tf.one_hot(0, width, dtype=dtype))
    return _Beam(
        ids=tf.zeros([*shape, max_length], tf.int32),
        last_ids=tf.broadcast_to(first_ids[:, tf.newaxis], shape),
        log_probs=tf.broadcast_to(logs, shape),
    )


def _only_allowed(
    log_probs: tf.Tensor, must_end: tf.Tensor, eos_id: int, width: int
) -> tf.Tensor:
    """`[B·W, V]` -> `[B, W, V]`, with nothing but the end where that must come."""
    num_tokens = log_probs.shape[-1]
    log_probs = tf.reshape(log_probs, [-1, width, num_tokens])
    goes_on = tf.not_equal(tf.range(num_tokens), eos_id)
    barred = tf.logical_and(must_end[:, tf.newaxis, tf.newaxis], goes_on)
    return tf.where(barred, tf.constant(float("-inf"), log_probs.dtype), log_probs)


def _best_extensions(
    beam: _Beam, log_probs: tf.Tensor, t: tf.Tensor
) -> tuple[tf.Tensor, _Beam]:
    """Extends a beam by `[B, W, V]`: the parents `[B, W]` of the W best, and these."""
    batch_size, width, num_tokens = log_probs.shape
    totals = beam.log_probs[:, :, tf.newaxis] + log_probs
    best, places = tf.math.top_k(tf.reshape(totals, [batch_size, -1]), width)
    parents, tokens = places // num_tokens, places % num_tokens
    now = tf.equal(tf.range(beam.ids.shape[-1]), t)
    ids = tf.gather(beam.ids, parents, axis=1, batch_dims=1)
    ids = tf.where(now, tokens[:, :, tf.newaxis], ids)
    return parents, _Beam(ids, tokens, best)


def _check(width: int, num_hypotheses: int) -> None:
    if not isinstance(width, int) or width < 1:
        raise ValueError(
            f"width, the hypotheses in the beam, must be an integer of at least 1; got "
            f"{width!r}. 1 is greedy search."
        )
    if not isinstance(num_hypotheses, int) or not 1 <= num_hypotheses <= width:
        raise ValueError(
            "num_hypotheses must be an integer from 1 to the beam's width, here "
            f"{width}; got {num_hypotheses!r}. Return fewer, or widen the beam."
        )
