"""How often each language pair is trained on: its share of the sentences, flattened.

Languages differ by a factor of 100,000 in how many sentences there are. Were each
sentence read as often as every other, small languages would hardly be learned; were
each language, the large ones would suffer. The temperature is in between.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np


def sampling_probabilities(sizes: Sequence[int], temperature: float) -> np.ndarray:
    """Returns how probable each language pair is: p ~ (D / sum of all D)^(1/T).

    By Arivazhagan et al. (1907.05019), who chose T = 5; GPipe (1811.06965, section 5)
    samples likewise, after BERT, and does not tell its T.

    Args:
        sizes: D, sentences of each pair, at least 1.
        temperature: T, at least 1: with 1 every sentence counts alike, with infinity
            every pair.

    Returns:
        float64 [number of pairs], of sum 1.

    Raises:
        ValueError: If the temperature is below 1 or no number.
    """
    weights = np.array([float(w) for w in _weights(sizes, temperature)])
    return weights / weights.sum()


def quotas(
    sizes: Sequence[int], temperature: float, num_sentences: int, blocks: int
) -> list[int]:
    """Returns how many sentences of each pair are in the first blocks of a stream.

    A block of `num_sentences` holds of each pair what is due to it by its probability,
    to within one sentence, and so do any number of blocks together. With T = 1, and all
    sentences in a block, a block holds each sentence once.

    Args:
        sizes: D, as of `sampling_probabilities`.
        temperature: T, likewise.
        num_sentences: In a block, at least the sum of D, so that in no block a pair's
            sentences become fewer.
        blocks: How many blocks.

    Returns:
        For each pair a number; their sum is `blocks * num_sentences`.

    Raises:
        ValueError: If the temperature is below 1 or no number.
    """
    weights = _weights(sizes, temperature)
    total, below, before, found = sum(weights), Fraction(0), 0, []
    for weight in weights:
        below += weight
        # Rounding the running sum, not each share, lets nothing be lost or gained.
        until = math.floor(blocks * num_sentences * below / total)
        found.append(until - before)
        before = until
    return found


def _weights(sizes: Sequence[int], temperature: float) -> list[Fraction]:
    if not isinstance(temperature, int | float) or not temperature >= 1.0:
        raise ValueError(
            "temperature must be at least 1, where every sentence is read as often as "
            f"every other; got {temperature!r}. 5 is usual."
        )
    return [Fraction(float(size) ** (1.0 / temperature)) for size in sizes]
