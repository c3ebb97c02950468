"""Tokens are drawn as often as their probabilities say, row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.models.decoding.sampling import draw_tokens, sample, uniform_draws
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.decode.continuous_batch import text_rows
from lingvo_pipe.training.task.protocols import Sampling, TextRows

NUM_TOKENS, EOS, MAX_TOKENS = 7, 2, 6
TABLE = np.random.default_rng(0).normal(0.0, 2.0, [NUM_TOKENS, NUM_TOKENS])


def probabilities(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    """Returns the probability of each token, cut off token by token."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    if sampling.temperature == 0:
        return np.eye(len(logits))[order[0]]
    order = order[: sampling.top_k or None]
    powers = np.exp((logits[order] - logits.max()) / sampling.temperature)
    kept, total = np.zeros(len(logits)), 0.0
    for token, share in zip(order, powers / powers.sum(), strict=True):
        if total >= sampling.top_p:
            break
        kept[token], total = share, total + share
    return kept / total


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.0},
        {"temperature": 0.0, "top_k": 3},
        {"temperature": 0.5},
        {"temperature": 3.0, "top_k": 4},
        {"top_k": 1},
        {"top_k": NUM_TOKENS + 5},
        {"top_p": 0.6},
        {"top_p": 1e-6},
        {"temperature": 2.0, "top_k": 5, "top_p": 0.7},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_shares_are_probabilities(settings: dict[str, Any], dtype: tf.DType) -> None:
    sampling, number = Sampling(MAX_TOKENS, **settings), 2000
    draws = tf.constant((np.arange(number) + 0.5) / number, tf.float32)
    for logits in TABLE:
        rows = tf.constant(np.broadcast_to(logits, [number, NUM_TOKENS]), dtype)
        tokens = draw_tokens(rows, draws, sampling).numpy()
        shares = np.bincount(tokens, minlength=NUM_TOKENS) / number
        expected = probabilities(logits, sampling)
        np.testing.assert_allclose(shares, expected, rtol=0, atol=1.5 / number)
        assert not shares[expected == 0].any()


def continued(prompts: list[list[int]], numbers: list[int], **settings: Any) -> Any:
    """Returns the texts of a model whose scores are a table by the last token.

    Rows are continued two tokens at a time.
    """
    sampling = Sampling(**{"max_tokens": MAX_TOKENS, **settings})

    @tf.function(autograph=False)
    def run(rows: TextRows, reads: tf.Tensor) -> Any:
        def step(tokens: tf.Tensor, reads: tf.Tensor, places: tf.Tensor) -> Any:
            return tf.gather(tf.constant(TABLE), tokens), reads + 1

        return sample(step, reads, rows, sampling, EOS, 2)

    ragged = tf.ragged.constant(prompts, tf.int32)
    lengths = tf.cast(ragged.row_lengths(), tf.int32)
    rows = text_rows(
        NestedMap(ids=ragged.to_tensor(), lengths=lengths), sampling.max_tokens, EOS
    )
    rows, reads = rows._replace(numbers=tf.constant(numbers)), tf.constant(0)
    while (rows.places + 1 < rows.lengths).numpy().any():
        reads_before = reads
        rows, reads = run(rows, reads)
        assert reads_before < reads <= reads_before + 2
    texts = []
    for row, length in zip(rows.ids.numpy(), rows.lengths.numpy(), strict=True):
        assert (row[length:] == EOS).all()
        texts.append(row[:length].tolist())
    return texts


def by_hand(prompt: list[int], number: int, sampling: Sampling) -> list[int]:
    (draws,) = uniform_draws(sampling, tf.constant([number])).numpy()
    text = list(prompt)
    for draw in draws:
        logits = TABLE[text[-1:]]
        text += draw_tokens(tf.constant(logits), draw[None], sampling).numpy().tolist()
        if text[-1] == EOS:
            break
    return text


PROMPTS = [[1], [1, 3, 4, 5, 6], [1, 2, 2], [1, 5], [1]]


@pytest.mark.parametrize(
    "settings", [{"temperature": 0.0}, {"seed": 7}, {"top_k": 2, "max_tokens": 1}]
)
def test_a_text_depends_on_its_prompt_and_number_alone(
    settings: dict[str, Any],
) -> None:
    """Also prompts of other lengths, which may hold the end token, are beside it."""
    sampling = Sampling(**{"max_tokens": MAX_TOKENS, **settings})
    numbers = [4, 9, 0, 2**31 - 1, 3]
    texts = continued(PROMPTS, numbers, **settings)
    expected = [by_hand(*row, sampling) for row in zip(PROMPTS, numbers, strict=True)]
    assert texts == expected
    backwards = continued(PROMPTS[::-1], numbers[::-1], **settings)
    assert backwards == expected[::-1]


def test_seeds_and_numbers_change_what_is_drawn() -> None:
    texts = continued([[1]] * 20, [*range(20)], temperature=2.0)
    assert len({*map(tuple, texts)}) > 10
    assert texts != continued([[1]] * 20, [*range(20)], temperature=2.0, seed=1)
