"""Beam search: likely sequences of a model that scores the next token.

Each step extends the W hypotheses of each example by every token and keeps the W best.
Hypotheses with an end token leave the beam (Sutskever et al., 1409.3215, section 3.2),
and the next step fills it again. Open hypotheses have equal lengths and are compared by
probability. Ended ones are compared by GNMT's score with a length penalty (Wu et al.,
1609.08144, section 7, equation 14), without its coverage penalty, which would need
attention's weights:

    score(Y) = log P(Y) / lp(|Y|)        lp(n) = ((5 + n) / (5 + 1))^α

|Y| counts the end token too. At an example's maximal length only this token is allowed.
The search ends when no open hypothesis can become one of the best ended ones: the log
probability of a hypothesis can only fall, and its penalty is at most the maximal
length's penalty. Examples don't change one another's results. Among equal hypotheses
the one that ended earlier wins, then the one of the better parent, then the one of the
smaller token.

Shapes: B examples, W hypotheses of each in the beam, N sequences returned, at most T
tokens, V tokens in the vocabulary.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from lingvo_pipe.core.checks import check_counts, is_count
from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.layers.attention import dim_size

# (ids [B·W], states, step number, [] or [B·W]) -> (log probabilities [B·W, V], states)
Step = Callable[[tf.Tensor, Any, tf.Tensor], tuple[tf.Tensor, Any]]
# (states, rows [B·W]) -> the states of these rows
ChooseRows = Callable[[Any, tf.Tensor], Any]


class Hypotheses(NamedTuple):
    """Ended sequences of each example, the best first and empty ones last."""

    ids: tf.Tensor  # [B, N, T] int32, including the end token, then 0
    lengths: tf.Tensor  # [B, N] int32, including the end token; 0 for an empty one
    log_probs: tf.Tensor  # [B, N], sums over all tokens, in nats; -inf for an empty one
    scores: tf.Tensor  # [B, N], with the length penalty; descending; -inf for empty


class _Beam(NamedTuple):
    """Open hypotheses: `ids` `[B, W, T]`, `last_ids` and `log_probs` `[B, W]`.

    An empty hypothesis has the log probability -inf.
    """

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
    """Finds the best sequences of all examples at once, in one loop of the graph.

    States stay on the devices of the initial states and of the step's results.

    Args:
        step: the model: maps the tokens at a step to the log probabilities, at most 0,
            of the next tokens. Row b·W + w is hypothesis w of example b.
        choose_rows: returns the states of the given rows. A row is replaced only by a
            row of the same example.
        states: tensors for the first step, of static shape except for the number of
            rows.
        first_ids: `[B]` int32: the first token to read, not part of a hypothesis.
        max_lengths: `[B]` int32, from 1 to T: most tokens, including the end token.
        max_length: T.
        eos_id: the end token.
        width: W.
        num_hypotheses: N, at most W.
        length_penalty: GNMT's α.
        dtype: dtype of the log probabilities.

    Raises:
        ValueError: if a number is out of its range.
    """
    check_counts(width=width)
    if not is_count(num_hypotheses) or num_hypotheses > width:
        expected = f"an integer from 1 to the beam's width, {width}"
        raise UserValueError(
            path="num_hypotheses", expected=expected, got=num_hypotheses
        )
    penalties = tf.constant(length_penalties(length_penalty, max_length), dtype)
    max_penalties = tf.gather(penalties, max_lengths)

    def can_improve(t: tf.Tensor, beam: _Beam, ended: Hypotheses, _: Any) -> tf.Tensor:
        reachable = tf.reduce_max(beam.log_probs, 1) / max_penalties
        improves = tf.reduce_any(reachable > ended.scores[:, -1])
        return tf.logical_and(t < max_length, improves)

    def extend(
        t: tf.Tensor, beam: _Beam, ended: Hypotheses, states: Any
    ) -> tuple[tf.Tensor, _Beam, Hypotheses, Any]:
        log_probs, states = step(tf.reshape(beam.last_ids, [-1]), states, t)
        log_probs = _only_allowed(log_probs, t + 1 >= max_lengths, eos_id, width)
        parents, extended = _best_extensions(beam, log_probs, t)
        ends = tf.equal(extended.last_ids, eos_id)
        lowest = tf.constant(float("-inf"), dtype)
        lengths = tf.fill(tf.shape(ends), t + 1)
        scores = tf.where(ends, extended.log_probs / penalties[t + 1], lowest)
        new = Hypotheses(extended.ids, lengths, extended.log_probs, scores)
        still_open = tf.where(ends, lowest, extended.log_probs)
        rows = parents + tf.range(dim_size(parents, 0))[:, tf.newaxis] * width
        return (
            t + 1,
            extended._replace(log_probs=still_open),
            _best_of(ended, new),
            choose_rows(states, tf.reshape(rows, [-1])),
        )

    batch_size = dim_size(first_ids, 0)
    in_beam, returned = [batch_size, width], [batch_size, num_hypotheses]
    # Each example starts with one hypothesis: empty, of probability 1.
    logs = tf.math.log(tf.one_hot(0, width, dtype=dtype))
    beam = _Beam(
        ids=tf.zeros([*in_beam, max_length], tf.int32),
        last_ids=tf.broadcast_to(first_ids[:, tf.newaxis], in_beam),
        log_probs=tf.broadcast_to(logs, in_beam),
    )
    none = tf.fill(returned, tf.constant(float("-inf"), dtype))
    no_ids = tf.zeros([*returned, max_length], tf.int32)
    ended = Hypotheses(no_ids, tf.zeros(returned, tf.int32), none, none)
    start = (tf.constant(0), beam, ended, states)
    # With automatic control dependencies, an identity on the loop's device would pass
    # each value on, and the states would move there in every step.
    search = tf.compat.v1.wrap_function(
        lambda: tf.while_loop(can_improve, extend, start)[2], []
    )
    return Hypotheses(*search())


def length_penalties(alpha: float, max_length: int) -> np.ndarray:
    """Returns the length penalties lp(0), ..., lp(max_length), in float64.

    Raises:
        ValueError: if α is out of range.
    """
    if not 0 <= alpha < math.inf:
        expected = "a finite number of at least 0, GNMT's α"
        hint = "0 scores only by probability; 0.6 to 1 are usual."
        raise UserValueError(
            path="length_penalty", expected=expected, got=alpha, hint=hint
        )
    return ((5.0 + np.arange(max_length + 1)) / 6.0) ** alpha


def _only_allowed(
    log_probs: tf.Tensor, must_end: tf.Tensor, eos_id: int, width: int
) -> tf.Tensor:
    """Reshapes `[B·W, V]` to `[B, W, V]`, with -inf for tokens that are not allowed."""
    num_tokens = log_probs.shape[-1]
    log_probs = tf.reshape(log_probs, [-1, width, num_tokens])
    is_not_end = tf.not_equal(tf.range(num_tokens), eos_id)
    barred = tf.logical_and(must_end[:, tf.newaxis, tf.newaxis], is_not_end)
    return tf.where(barred, tf.constant(float("-inf"), log_probs.dtype), log_probs)


def _best_extensions(
    beam: _Beam, log_probs: tf.Tensor, t: tf.Tensor
) -> tuple[tf.Tensor, _Beam]:
    """Extends a beam by one token, with log probabilities `[B, W, V]`.

    Returns the parents `[B, W]` of the W best hypotheses, and these hypotheses.
    """
    _, width, num_tokens = log_probs.shape
    sums = beam.log_probs[:, :, tf.newaxis] + log_probs
    best, indices = tf.math.top_k(tf.reshape(sums, [-1, width * num_tokens]), width)
    parents, tokens = indices // num_tokens, indices % num_tokens
    now = tf.equal(tf.range(beam.ids.shape[-1]), t)
    ids = tf.gather(beam.ids, parents, axis=1, batch_dims=1)
    ids = tf.where(now, tokens[:, :, tf.newaxis], ids)
    return parents, _Beam(ids, tokens, best)


def _best_of(old: Hypotheses, new: Hypotheses) -> Hypotheses:
    """Returns the N best of the old and the new hypotheses.

    Among hypotheses of equal score, old ones come first, then lower indices.
    """
    joined = [tf.concat(pair, 1) for pair in zip(old, new, strict=True)]
    scores, indices = tf.math.top_k(joined[-1], old.scores.shape[1])
    gathered = [tf.gather(x, indices, axis=1, batch_dims=1) for x in joined[:-1]]
    return Hypotheses(*[*gathered, scores])
