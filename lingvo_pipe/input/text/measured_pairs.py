"""Sentences whose tokens have been counted: of which languages, and which fit.

All are tokenized once, before the first batch. Then it is known which sentences can't
be used, how many each pair of languages has, and how they fill rows.

Shapes: N sentences, K of them at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from absl import logging

from lingvo_pipe.input.text.row_limit import RowLimit
from lingvo_pipe.input.text.sentence_pairs import PairSource
from lingvo_pipe.input.text.vocabulary import Vocabulary

_CHUNK_SIZE = 1024


@dataclass(frozen=True)
class MeasuredPairs:
    """A source of sentences, and what has been found out about it.

    Attributes:
        source: The source.
        pairs: The pairs of languages, (source, target), in order.
        pair_of: int32 [N], for each sentence the place of its pair in `pairs`.
        num_tokens: int32 [N, 2], of source and target, without any that are added.
    """

    source: PairSource
    pairs: list[tuple[str, str]]
    pair_of: np.ndarray
    num_tokens: np.ndarray

    def names(self) -> list[str]:
        """The name of each pair, such as `de-en`."""
        return ["-".join(pair) for pair in self.pairs]

    def fitting(
        self, source: RowLimit, target: RowLimit | None, allow_others: bool
    ) -> np.ndarray:
        """Returns which sentences can be used, and logs how many can't, by pair.

        Args:
            source: How long sources may be.
            target: How long targets may be; None: as long as they like, and empty.
            allow_others: Whether there may be sentences that can't be used.

        Returns:
            int64, ascending.

        Raises:
            ValueError: If there are, and must not be; or if a pair has no other.
        """
        limits = [limit for limit in (source, target) if limit is not None]
        counts = self.num_tokens[:, : len(limits)]
        longer = np.any(counts > np.array([limit.most for limit in limits]), axis=1)
        empty = np.any(counts == 0, axis=1) & ~longer
        fits = ~(longer | empty)
        lengths = " and ".join(map(str, limits))
        if not fits.all():
            report = f"{self._report(longer, empty)}. {self._first(fits, limits)}."
            if not allow_others:
                raise ValueError(
                    f"Sentences must not be empty, nor longer than {lengths}, for "
                    f"allow_left_out is False; {report} Lengthen the rows, mend the "
                    "data, or set allow_left_out=True to leave them out."
                )
            logging.warning(
                "Sentences that are empty, or longer than %s, are left out: %s "
                "Lengthen the rows, or set allow_left_out=False to be stopped.",
                lengths,
                report,
            )
        self._check_each_pair_has(fits, lengths)
        return np.flatnonzero(fits)

    def _report(self, longer: np.ndarray, empty: np.ndarray) -> str:
        faults = []
        for place, name in enumerate(self.names()):
            is_here = self.pair_of == place
            counts = [np.sum(x & is_here) for x in (longer, empty)]
            if any(counts):
                faults.append(
                    f"{counts[0]:,} of {is_here.sum():,} sentences of {name} are too "
                    f"long, {counts[1]:,} empty"
                )
        return "; ".join(faults)

    def _first(self, fits: np.ndarray, limits: Sequence[RowLimit]) -> str:
        number = int(np.flatnonzero(~fits)[0])
        counts = self.num_tokens[number]
        tokens = [
            f"{limit.param} {count + limit.added:,}"
            for count, limit in zip(counts, limits, strict=False)
            if count > limit.most
        ]
        found = f"needs {' and '.join(tokens)}" if tokens else "is empty"
        return f"The first, {self.source.Where(number)}, {found}"

    def _check_each_pair_has(self, fits: np.ndarray, lengths: str) -> None:
        counts = np.bincount(self.pair_of[fits], minlength=len(self.pairs))
        without = [
            n for n, count in zip(self.names(), counts, strict=True) if not count
        ]
        if without:
            raise ValueError(
                "Each pair of languages must have sentences that are not empty, nor "
                f"longer than {lengths}; {', '.join(without)} "
                f"{'has' if len(without) == 1 else 'have'} none. Lengthen the rows, or "
                "leave the pairs out."
            )


def measure(source: PairSource, vocabulary: Vocabulary) -> MeasuredPairs:
    """Counts the tokens of all sentences.

    Raises:
        ValueError: If there are no sentences.
    """
    if not source.num_sentences:
        raise ValueError("There must be sentences to read; there are none. Check data.")
    chunks = tf.data.Dataset.range(0, source.num_sentences, _CHUNK_SIZE)

    def count(first: tf.Tensor) -> tuple[tf.Tensor, ...]:
        numbers = tf.range(first, tf.minimum(first + _CHUNK_SIZE, source.num_sentences))
        *texts, source_language, target_language = fetch(source, numbers)
        counts = [vocabulary.Tokenize(x).row_lengths() for x in texts]
        return tf.stack(counts, 1), source_language, target_language

    counted = chunks.map(
        tf.autograph.experimental.do_not_convert(count), tf.data.AUTOTUNE
    )
    places: dict[tuple[bytes, bytes], int] = {}
    pair_of, num_tokens = [], []
    for counts, *languages in counted.as_numpy_iterator():
        pairs = zip(*(x.tolist() for x in languages), strict=True)
        pair_of.append([places.setdefault(pair, len(places)) for pair in pairs])
        num_tokens.append(counts.astype(np.int32))
    return MeasuredPairs(
        source,
        [(one.decode(), other.decode()) for one, other in places],
        np.concatenate(pair_of).astype(np.int32),
        np.concatenate(num_tokens),
    )


def fetch(source: PairSource, numbers: tf.Tensor) -> list[tf.Tensor]:
    """Returns what SentencePairs has, as tensors: string [K] each.

    Args:
        source: Where the sentences are.
        numbers: int64 [K].
    """
    texts = tf.numpy_function(
        lambda chosen: list(source.Fetch(chosen)),
        [numbers],
        [tf.string] * 4,
        stateful=False,
    )
    return [tf.ensure_shape(text, numbers.shape) for text in texts]
