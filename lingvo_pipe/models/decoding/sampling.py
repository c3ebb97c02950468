"""Sampling: texts continued token by token, each token drawn from the model's scores.

    step          0     1     2     3     4      prompt: <s> the cat
    token read   <s>   the   cat   sat   down
    next token   the   cat   sat   down  </s>    drawn from the third on

A row reads the rest of its prompt by the same steps as its own tokens. So rows may have
prompts of different lengths, and begin at different times. A draw is from the `top_k`
likeliest tokens, and of these from the fewest whose probabilities sum to `top_p`
(Holtzman et al., 1904.09751, section 3.1). A row's tokens depend on no other row.

Shapes: B rows, T tokens in a row, N new tokens at most, V tokens in the vocabulary.
"""

from typing import Any

import tensorflow as tf

from lingvo_pipe.layers.attention import dim_size
from lingvo_pipe.models.decoding.beam_search import Step
from lingvo_pipe.training.task.protocols import Sampling, TextRows


def uniform_draws(sampling: Sampling, numbers: tf.Tensor) -> tf.Tensor:
    """Returns draws from [0, 1), float32 `[B, N]`, for rows with `numbers` `[B]`."""
    seed, numbers = (tf.cast(x, tf.int64) for x in (sampling.seed, numbers))
    draws = tf.map_fn(
        lambda number: tf.random.stateless_uniform(
            [sampling.max_tokens], tf.stack([seed, number])
        ),
        tf.pad(numbers, [[0, 1]]),  # map_fn needs a row.
        fn_output_signature=tf.TensorSpec([None], tf.float32),
    )
    return draws[:-1]


def sample(
    step: Step,
    states: Any,
    rows: TextRows,
    sampling: Sampling,
    eos_id: int,
    num_steps: int | tf.Tensor,
) -> tuple[TextRows, Any]:
    """Continues all rows at once, in one loop of the graph. Returns rows and states.

    The loop ends after `num_steps` steps, or once all texts are finished. A text also
    ends, with length 0, where the logits have no finite sum of exponentials. Without
    automatic control dependencies (see `beam_search`), states stay on the devices of
    the first states and of the step's results.

    `step` maps tokens `[B]`, states and the tokens' places `[B]` to the logits `[B, V]`
    of the next tokens, and to new states. `states` have room for T tokens.
    """
    positions = tf.range(dim_size(rows.ids, 1))
    draws = uniform_draws(sampling, rows.numbers)

    def goes_on(
        number: tf.Tensor, _: tf.Tensor, places: tf.Tensor, lengths: tf.Tensor, *__: Any
    ) -> tf.Tensor:
        is_open = tf.reduce_any(places + 1 < lengths)
        return tf.logical_and(number < num_steps, is_open)

    def extend(
        number: tf.Tensor,
        ids: tf.Tensor,
        places: tf.Tensor,
        lengths: tf.Tensor,
        states: Any,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor, Any]:
        logits, states = step(tf.gather(ids, places, batch_dims=1), states, places)
        is_open, nexts = places + 1 < lengths, places + 1
        new = nexts - rows.prompt_lengths  # The next token's place among the new ones.
        draw = tf.gather(
            draws, tf.clip_by_value(new, 0, sampling.max_tokens - 1), batch_dims=1
        )
        drawn = draw_tokens(logits, draw, sampling)
        is_new = tf.logical_and(new >= 0, is_open)
        now = tf.equal(positions, tf.where(is_new, nexts, -1)[:, tf.newaxis])
        ids = tf.where(now, drawn[:, tf.newaxis], ids)
        ends = tf.logical_and(is_new, tf.equal(drawn, eos_id))
        lengths = tf.where(ends, nexts + 1, lengths)
        is_finite = tf.math.is_finite(tf.reduce_logsumexp(logits, 1))
        lengths = tf.where(tf.logical_and(is_new, ~is_finite), 0, lengths)
        return number + 1, ids, tf.where(is_open, nexts, places), lengths, states

    start = (tf.constant(0), rows.ids, rows.places, rows.lengths, states)
    _, ids, places, lengths, states = tf.while_loop(goes_on, extend, start)
    return rows._replace(ids=ids, places=places, lengths=lengths), states


def draw_tokens(logits: tf.Tensor, draws: tf.Tensor, sampling: Sampling) -> tf.Tensor:
    """Maps logits `[B, V]` and draws `[B]` from [0, 1) to tokens, int32 `[B]`.

    A draw is a place among the tokens' cumulative probabilities, likeliest first.
    """
    num_tokens = logits.shape[1]
    temperature = tf.cast(sampling.temperature, logits.dtype)
    is_greedy = tf.equal(temperature, 0)
    top_k = tf.minimum(sampling.top_k, num_tokens)
    num_seen = tf.where(tf.equal(top_k, 0), num_tokens, top_k)
    scores, tokens = tf.math.top_k(logits, tf.where(is_greedy, 1, num_seen))
    scores /= tf.where(is_greedy, tf.ones_like(temperature), temperature)
    shares = tf.nn.softmax(scores)
    before = tf.cumsum(shares, axis=1, exclusive=True)
    is_kept = before < tf.cast(sampling.top_p, logits.dtype)
    totals = tf.cumsum(tf.where(is_kept, shares, tf.zeros_like(shares)), axis=1)
    target = tf.cast(draws, logits.dtype)[:, tf.newaxis] * totals[:, -1:]
    place = tf.math.count_nonzero(totals <= target, axis=1, dtype=tf.int32)
    return tf.gather(tokens, place, batch_dims=1)
