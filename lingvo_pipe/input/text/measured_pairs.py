"""Counts of tokens, and the choice of sentences that fit a row: K of N sentences."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.input.text.sentence_pairs import PairSource
from lingvo_pipe.input.text.vocabulary import Vocabulary
from lingvo_pipe.input.tf_data import call_numpy, map_plainly

_CHUNK_SIZE = 1024


class RowLimit(NamedTuple):
    """The room that a row has for one sentence."""

    param: str  # name of the param with the rows' length
    length: int  # tokens in a row
    added: int  # tokens added to each sentence, such as the end token

    @property
    def max_tokens(self) -> int:
        """The most tokens that a sentence may have, apart from the added tokens."""
        return self.length - self.added

    def check(self) -> None:
        """Raises a ValueError if a row has no room for any sentence."""
        if self.max_tokens < 1:
            raise UserValueError(
                path=f"input.{self.param}",
                expected=f"at least {self.added + 1} tokens: one of a sentence, and "
                f"{self.added} added, such as the end token",
                got=self.length,
                hint="Usual lengths are 32 to 256.",
            )


@dataclass(frozen=True)
class MeasuredPairs:
    """A source of sentences, with each sentence's languages and number of tokens."""

    source: PairSource
    pairs: list[tuple[str, str]]  # of languages, in order of appearance
    pair_of: np.ndarray  # int32 [N], index of each sentence's pair in `pairs`
    num_tokens: np.ndarray  # int32 [N, 2], source and target tokens, no added ones

    def names(self) -> list[str]:
        """Returns the name of each pair of languages, such as `de-en`."""
        return ["-".join(pair) for pair in self.pairs]

    def fitting(
        self, source: RowLimit, target: RowLimit | None, allow_others: bool
    ) -> np.ndarray:
        """Returns the numbers of the sentences that fit into a row, ascending.

        Logs how many sentences are empty or too long. If `target` is None, targets may
        be empty or of any length.

        Raises:
            ValueError: if not all fit, unless `allow_others`, or none of a pair does.
        """
        limits = [limit for limit in (source, target) if limit is not None]
        counts = self.num_tokens[:, : len(limits)]
        longer = np.any(counts > [limit.max_tokens for limit in limits], axis=1)
        empty = np.any(counts == 0, axis=1) & ~longer
        fits = ~(longer | empty)
        lengths = " and ".join(f"{x.param} {x.length:,}" for x in limits)
        if not fits.all():
            report = f"{self._report(longer, empty)}. {self._first(fits, limits)}."
            if not allow_others:
                raise UserValueError(
                    path="input.data",
                    expected=f"sentences neither empty nor longer than {lengths}",
                    got=Words(report.rstrip(".")),
                    hint="Lengthen the rows, correct the data, or set "
                    "input.allow_left_out=True to skip them.",
                )
            logging.warning(
                "Sentences that are empty, or longer than %s, are left out: %s "
                "Lengthen the rows, or set allow_left_out=False to raise an error.",
                lengths,
                report,
            )
        counts = np.bincount(self.pair_of[fits], minlength=len(self.pairs))
        if not counts.all():
            without = [self.names()[pair] for pair in np.flatnonzero(counts == 0)]
            raise UserValueError(
                path="input.data",
                expected="sentences of each language pair that are neither empty nor "
                f"longer than {lengths}",
                got=Words(f"none of {', '.join(without)}"),
                hint="Lengthen the rows, or leave the pairs out.",
            )
        return np.flatnonzero(fits)

    def _report(self, longer: np.ndarray, empty: np.ndarray) -> str:
        problems = []
        for pair, name in enumerate(self.names()):
            is_here = self.pair_of == pair
            counts = [np.sum(x & is_here) for x in (longer, empty)]
            if any(counts):
                problems.append(
                    f"{counts[0]:,} of {is_here.sum():,} sentences of {name} are too "
                    f"long, {counts[1]:,} empty"
                )
        return "; ".join(problems)

    def _first(self, fits: np.ndarray, limits: Sequence[RowLimit]) -> str:
        number = int(np.flatnonzero(~fits)[0])
        counts = self.num_tokens[number]
        tokens = [
            f"{limit.param} {count + limit.added:,}"
            for count, limit in zip(counts, limits, strict=False)
            if count > limit.max_tokens
        ]
        reason = f"needs {' and '.join(tokens)}" if tokens else "is empty"
        return f"The first, {self.source.Where(number)}, {reason}"


def measure(source: PairSource, vocabulary: Vocabulary) -> MeasuredPairs:
    """Tokenizes all sentences of a source to count their tokens.

    Logs the pairs of languages in which many tokens are not in the vocabulary.

    Raises:
        ValueError: if there are no sentences.
    """
    if not source.num_sentences:
        expected = "at least one sentence"
        raise UserValueError(path="input.data", expected=expected, got=Words("none"))
    chunks = tf.data.Dataset.range(0, source.num_sentences, _CHUNK_SIZE)

    def count(first: tf.Tensor) -> tuple[tf.Tensor, ...]:
        numbers = tf.range(first, tf.minimum(first + _CHUNK_SIZE, source.num_sentences))
        *texts, source_language, target_language = fetch(source, numbers)
        tokens = [vocabulary.Tokenize(x) for x in texts]
        counts = tf.stack([x.row_lengths() for x in tokens], 1)
        unknown = tf.add_n([vocabulary.NumUnknown(x) for x in tokens])
        return counts, unknown, source_language, target_language

    indices: dict[tuple[bytes, bytes], int] = {}
    pair_of, num_tokens, num_unknown = [], [], []
    for counts, unknown, *languages in map_plainly(chunks, count).as_numpy_iterator():
        pairs = zip(*(x.tolist() for x in languages), strict=True)
        pair_of.append([indices.setdefault(pair, len(indices)) for pair in pairs])
        num_tokens.append(counts.astype(np.int32))
        num_unknown.append(unknown)
    measured = MeasuredPairs(
        source,
        [
            (source_code.decode(), target_code.decode())
            for source_code, target_code in indices
        ],
        np.concatenate(pair_of).astype(np.int32),
        np.concatenate(num_tokens),
    )
    totals, unknown_totals = (
        np.bincount(measured.pair_of, weights)
        for weights in (measured.num_tokens.sum(1), np.concatenate(num_unknown))
    )
    shares = unknown_totals / np.maximum(totals, 1)
    vocabulary.WarnOfUnknown(dict(zip(measured.names(), shares, strict=True)))
    return measured


def fetch(source: PairSource, numbers: tf.Tensor) -> list[tf.Tensor]:
    """Returns sentences by number: SentencePairs' four fields, string `[K]` each."""
    specs = [tf.TensorSpec(numbers.shape, tf.string)] * 4
    return call_numpy(lambda chosen: list(source.Fetch(chosen)), numbers, specs)
