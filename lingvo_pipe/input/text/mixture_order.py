"""The order of training sentences of several language pairs, from seed and position.

Training reads an endless stream of sentences. A round is as many of them as there are
in the data; of these each pair has what the temperature gives it, strewn at random.
Each pair reads its own epochs, each in an order of its own, from where the round before
has left off:

    pairs        de-en fr-en de-en de-en fr-en ...
    of de-en       0           1     2         ...   of its stream of epochs
    of fr-en             0                 1   ...

Nothing is remembered: a round is computed from its number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lingvo_pipe.input.example_order import permutation, stream_indices
from lingvo_pipe.input.text.temperature import quotas


@dataclass(frozen=True)
class MixtureOrder:
    """The rounds of a stream of sentences.

    Attributes:
        members: For each pair's name the numbers of its sentences, int64 [D].
        temperature: T of `sampling_probabilities`.
        seed: Chooses all orders; from 0 to 2**64 - 1.
        shuffle: Whether pairs shuffle their epochs; else they read them in order.
    """

    members: Mapping[str, np.ndarray]
    temperature: float
    seed: int
    shuffle: bool

    def sentences(self, number: int) -> np.ndarray:
        """Returns the sentences of a round in order: int64 [sum of all D].

        Args:
            number: The round, from 0.
        """
        names = sorted(self.members)
        starts, stops = (self._sentences_before(names, n) for n in (number, number + 1))
        streams = [
            self._stream(name, start, stop)
            for name, start, stop in zip(names, starts, stops, strict=True)
        ]
        in_order = np.concatenate(streams)
        pairs = np.repeat(np.arange(len(names)), [len(stream) for stream in streams])
        order = permutation(self._seed_of("pairs"), number, len(pairs))
        # Each pair's sentences go to its places in the order of its stream.
        places = np.argsort(pairs[order], kind="stable")
        sentences = np.empty_like(in_order)
        sentences[places] = in_order
        return sentences

    def _sentences_before(self, names: list[str], number: int) -> list[int]:
        sizes = [len(self.members[name]) for name in names]
        return quotas(sizes, self.temperature, sum(sizes), number)

    def _stream(self, name: str, start: int, stop: int) -> np.ndarray:
        members = self.members[name]
        seed = self._seed_of(f"sentences of {name}") if self.shuffle else None
        return members[stream_indices(seed, start, stop, len(members))]

    def _seed_of(self, name: str) -> int:
        """A seed of its own for each name: pairs of one size would be in step."""
        digest = hashlib.sha256(f"{self.seed} {name}".encode()).digest()
        return int.from_bytes(digest[:8], "little")
