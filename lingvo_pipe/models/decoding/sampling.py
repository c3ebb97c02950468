"""Sampling: texts continued token by token, each token drawn from the model's scores.

    step          0     1     2     3     4      prompt: <s> the cat
    token read   <s>   the   cat   sat   down
    next token   the   cat   sat   down  </s>    drawn from the third on

A row reads its prompt by the same steps as its own tokens, so rows may have prompts of
different lengths. Likely tokens come first in what a draw sees: at most `top_k`, and of
these the fewest whose probabilities sum to `top_p` (Holtzman et al., 1904.09751,
section 3.1). Each row has draws of its own. So its tokens depend on no other row.

Shapes: B rows, P tokens of the longest prompt, N new tokens at most, T = P + N, V
tokens in the vocabulary.
"""

from typing import Any

import tensorflow as tf

from lingvo_pipe.layers.attention import dim_size
from lingvo_pipe.models.decoding.beam_search import Step
from lingvo_pipe.training.task.protocols import Samples, Sampling


def uniform_draws(sampling: Sampling, numbers: tf.Tensor) -> tf.Tensor:
    """Returns draws from [0, 1) for rows with these `numbers` [B], float32 `[B, N]`.

    They depend on the seed and the row's number alone.
    """
    seed, numbers = (tf.cast(x, tf.int64) for x in (sampling.seed, numbers))
    return tf.map_fn(
        lambda number: tf.random.stateless_uniform(
            [sampling.max_tokens], tf.stack([seed, number])
        ),
        numbers,
        fn_output_signature=tf.TensorSpec([None], tf.float32),
    )


def sample(
    step: Step,
    states: Any,
    prompts: tf.Tensor,
    prompt_lengths: tf.Tensor,
    draws: tf.Tensor,
    sampling: Sampling,
    eos_id: int,
) -> Samples:
    """Continues all prompts at once, in one loop of the graph, which ends with them.

    States stay on the devices of the initial states and of the step's results.

    Args:
        step: the model: maps tokens [B] and states to the logits `[B, V]` of the next
            tokens, and to new states.
        states: tensors for the first step, enough for T - 1 steps.
        prompts: int32 `[B, P]`.
        prompt_lengths: int32 [B], at least 1.
        draws: numbers from `uniform_draws`.
        sampling: how tokens are drawn.
        eos_id: the end token.
    """
    max_tokens = tf.convert_to_tensor(sampling.max_tokens)
    ids = tf.pad(prompts, [[0, 0], [0, max_tokens]])
    positions = tf.range(dim_size(ids, 1))
    ids = tf.where(positions < prompt_lengths[:, tf.newaxis], ids, eos_id)

    def goes_on(t: tf.Tensor, _: tf.Tensor, lengths: tf.Tensor, *__: Any) -> tf.Tensor:
        return tf.reduce_any(t + 1 < lengths)

    def extend(
        t: tf.Tensor, ids: tf.Tensor, lengths: tf.Tensor, states: Any
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, Any]:
        logits, states = step(ids[:, t], states, t)
        place = t + 1 - prompt_lengths  # Of the next token, among the new ones.
        draw = tf.gather(
            draws, tf.clip_by_value(place, 0, max_tokens - 1), batch_dims=1
        )
        drawn = draw_tokens(logits, draw, sampling)
        is_new = tf.logical_and(place >= 0, t + 1 < lengths)
        now = tf.logical_and(is_new[:, tf.newaxis], tf.equal(positions, t + 1))
        ids = tf.where(now, drawn[:, tf.newaxis], ids)
        ends = tf.logical_and(is_new, tf.equal(drawn, eos_id))
        return t + 1, ids, tf.where(ends, t + 2, lengths), states

    start = (tf.constant(0), ids, prompt_lengths + max_tokens, states)
    # Without automatic control dependencies, for the reason given in `beam_search`.
    loop = tf.compat.v1.wrap_function(
        lambda: tf.while_loop(goes_on, extend, start)[1:3], []
    )
    return Samples(*loop())


def draw_tokens(logits: tf.Tensor, draws: tf.Tensor, sampling: Sampling) -> tf.Tensor:
    """Maps logits `[B, V]` and draws [B] from [0, 1) to tokens, int32 [B].

    The draw is a place among the cumulative probabilities of the tokens, likeliest
    first.
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
