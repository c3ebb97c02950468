"""The order of several language pairs' training sentences, by seed and position.

Training reads an endless stream of sentences. The stream consists of rounds, each with
as many sentences as the data. The temperature sets each pair's share of a round,
because pairs differ in size by a factor of up to 100,000. Each pair has an endless
stream of its own epochs, which a round continues where the last round ended:

    pairs        de-en fr-en de-en de-en fr-en ...
    of de-en       0           1     2         ...   of its stream of epochs
    of fr-en             0                 1   ...

A round is computed from its number. Nothing is stored.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from lingvo_pipe.input.example_order import named_seed, permutation, stream_indices


@dataclass(frozen=True)
class MixtureOrder:
    """The order of training sentences from several language pairs, round by round."""

    members: Mapping[str, np.ndarray]  # each pair's sentence numbers, int64 [D]
    temperature: float  # T of `quotas`
    seed: int  # of all orders, from 0 to 2**64 - 1
    shuffle: bool  # if True, each pair shuffles its epochs

    def sentences(self, number: int) -> np.ndarray:
        """Returns a round's sentence numbers in order: int64 [sum of all pairs' D]."""
        names = sorted(self.members)
        sizes = [len(self.members[name]) for name in names]
        starts, stops = (
            quotas(sizes, self.temperature, sum(sizes), n) for n in (number, number + 1)
        )
        streams = [
            self._stream(name, start, stop)
            for name, start, stop in zip(names, starts, stops, strict=True)
        ]
        in_order = np.concatenate(streams)
        pairs = np.repeat(np.arange(len(names)), [len(stream) for stream in streams])
        order = permutation(named_seed(self.seed, "pairs"), number, len(pairs))
        # Each pair's sentences fill its positions in the order of its stream.
        positions = np.argsort(pairs[order], kind="stable")
        sentences = np.empty_like(in_order)
        sentences[positions] = in_order
        return sentences

    def _stream(self, name: str, start: int, stop: int) -> np.ndarray:
        members = self.members[name]
        # Seeded by name, so that pairs of equal size differ in order.
        seed = named_seed(self.seed, f"sentences of {name}") if self.shuffle else None
        return members[stream_indices(seed, start, stop, len(members))]


def quotas(
    sizes: Sequence[int], temperature: float, num_sentences: int, blocks: int
) -> list[int]:
    """Returns each pair's number of sentences in the first `blocks` blocks of a stream.

    A block has `num_sentences` sentences, to which a pair of D sentences contributes in
    proportion to D^(1/T), to within one sentence. `sizes` are the pairs' D, at least 1,
    and T is the temperature, at least 1. T = 1 samples sentences uniformly, and an
    infinite T samples pairs uniformly. From Arivazhagan et al. (1907.05019), who chose
    T = 5. GPipe (1811.06965, section 5) states no T.

    With T = 1 and blocks as large as the data, each block has each sentence once.
    `num_sentences` must be at least the sum of `sizes`, so that one more block never
    lowers a pair's number.
    """
    weights = [Fraction(float(size) ** (1.0 / temperature)) for size in sizes]
    total, below, before, counts = sum(weights), Fraction(0), 0, []
    for weight in weights:
        below += weight
        # Rounding the running sum, not each share, keeps the total exact.
        until = math.floor(blocks * num_sentences * below / total)
        counts.append(until - before)
        before = until
    return counts
