"""Batches of sentences and their translations, in one or many pairs of languages.

Shapes: B rows in a batch, S source and T target tokens in a row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.example_order import check_start_step
from lingvo_pipe.input.text.batch_plan import BatchPlan, BatchPlanner, PlanPositions
from lingvo_pipe.input.text.measured_pairs import MeasuredPairs, fetch, measure
from lingvo_pipe.input.text.mixture_order import MixtureOrder, sampling_probabilities
from lingvo_pipe.input.text.sentence_pairs import JoinedPairs
from lingvo_pipe.input.text.text_input_checks import (
    RowLimit,
    check_data,
    check_sizes,
)
from lingvo_pipe.input.text.token_rows import source_rows, target_rows
from lingvo_pipe.input.text.vocabulary import Vocabulary, open_vocabulary
from lingvo_pipe.nested_map import NestedMap

_BATCHES_AHEAD = 2
_STREAM = ("ids", "segment_ids", "segment_pos")


class TranslationInput:
    """Packed rows of tokenized, translated sentences.

    A batch is a NestedMap of

    - source: `ids`, `segment_ids` and `segment_pos`, int32 [B, S];
    - target: the same, [B, T]; `labels`, int32 [B, T], one token ahead of the `ids`;
      and `weights`, float32 [B, T], 1 for a token and 0 for padding.

    The sentences of a row are segments 1, 2, ...; 0 is padding. A source is the
    language token (with `language_tokens`), the sentence and the end token; labels are
    the translation and the end token. No sentence is ever split or truncated.

    Training mixes the language pairs by `temperature`. Batches depend only on the
    params, the data and the step, so a resumed run reads the same batches as an
    uninterrupted one.

    Data are opened, and their tokens counted, when first read; `element_spec` needs no
    data.

    Args:
        params: the params.

    Raises:
        ValueError: if a param is unset or out of range. Later, if the data or the
            vocabulary cannot be used.
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Returns the params of the input."""
        p = InstantiableParams(cls)
        p.Define(
            "data",
            [],
            "List of data sets: params of ParallelFiles, TsvFile, TfdsPairs or your "
            "own PairDataset. Several of them may have the same language pair.",
        )
        p.Define(
            "data_dir",
            None,
            "Folder of data sets, and of relative file names. If None, the default of "
            "tfds, and the working directory.",
        )
        p.Define("vocab_file", None, "Vocabulary file, from lingvo_pipe_train_vocab.")
        p.Define(
            "vocab_size", None, "Tokens in the vocabulary: the model's num_tokens."
        )
        p.Define(
            "language_tokens",
            True,
            "If True, a source begins with the token of the target language.",
        )
        p.Define("batch_size", None, "B, rows in a batch, over all micro-batches.")
        p.Define("source_length", None, "S, tokens in a row of sources.")
        p.Define("target_length", None, "T, tokens in a row of translations.")
        p.Define("packing", True, "If True, a row holds several sentences.")
        p.Define(
            "allow_left_out",
            True,
            "If True, sentences that are empty or longer than a row are left out and "
            "counted in the log; if False, they are an error.",
        )
        p.Define(
            "temperature",
            5.0,
            "Balance of language pairs in training: 1 samples sentences uniformly, "
            "infinity samples pairs uniformly.",
        )
        p.Define("shuffle", True, "If True, training shuffles each pair's sentences.")
        p.Define("random_seed", 0, "Seed of the training order.")
        return p

    def __init__(self, params: InstantiableParams) -> None:
        check_sizes(
            params, "batch_size", "source_length", "target_length", "vocab_size"
        )
        check_data(params)
        sampling_probabilities([1], params.temperature)
        self._params = params
        for limit in self._limits():
            limit.check()
        self._datasets = [data.Instantiate() for data in params.data]
        self._positions: PlanPositions | None = None

    @property
    def params(self) -> InstantiableParams:
        return self._params

    @property
    def element_spec(self) -> NestedMap:
        """The tf.TensorSpec of each tensor of a batch."""
        p = self._params
        source, target = (
            tf.TensorSpec((p.batch_size, length), tf.int32)
            for length in (p.source_length, p.target_length)
        )
        weights = tf.TensorSpec((p.batch_size, p.target_length), tf.float32)
        return NestedMap(
            source=NestedMap(dict.fromkeys(_STREAM, source)),
            target=NestedMap(
                dict.fromkeys((*_STREAM, "labels"), target), weights=weights
            ),
        )

    @functools.cached_property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary, opened."""
        p = self._params
        return open_vocabulary(p.vocab_file, p.data_dir, p.vocab_size)

    def TrainBatches(self, start_step: int = 0, place: str = "") -> tf.data.Dataset:
        """Returns the endless batches of training from `start_step` on.

        Args:
            start_step: number of steps already trained.
            place: the text from `Place`, or "". It saves packing earlier batches again,
                and does not change the batches.

        Raises:
            ValueError: if `start_step` is negative, or the data or the vocabulary
                cannot be used.
        """
        check_start_step(start_step)
        p, measured = self._params, self._measured
        fitting = self._fitting
        members = {
            name: fitting[measured.pair_of[fitting] == pair]
            for pair, name in enumerate(measured.names())
        }
        order = MixtureOrder(members, p.temperature, p.random_seed, p.shuffle)
        planner = self._planner(p.packing)
        positions = self._positions = PlanPositions(planner, order)
        start = positions.read(place, start_step)

        def plans() -> Iterator[BatchPlan]:
            for begin, plan in planner.training(order, start_step, start):
                positions.add(begin)
                yield plan

        return self._batches(plans)

    def Place(self, step: int) -> str:
        """Returns the position of the last training batch read before `step`, or "".

        Args:
            step: number of steps whose batches were read.
        """
        return "" if self._positions is None else self._positions.text_before(step)

    def EvalBatches(self) -> tf.data.Dataset:
        """Returns one pass over all sentences in order; the last rows are empty.

        Raises:
            ValueError: if the data or the vocabulary cannot be used.
        """
        planner, fitting = self._planner(self._params.packing), self._fitting
        return self._batches(lambda: planner.one_pass(fitting))

    def DecodeBatches(self) -> tf.data.Dataset:
        """Returns one pass over all sources to translate, one sentence per row.

        The longest come first, so a batch has sentences of similar length: a batch
        takes as long as its longest translation.

        A batch is a NestedMap of

        - source: as in other batches;
        - source_text, target_text: string [B], the sentence and its translation;
        - source_language, target_language: string [B];
        - place: int64 [B], the sentence's number in the data, from 0;
        - weight: float32 [B], 1 for a sentence and 0 for padding, whose texts are
          empty.

        Only sentences whose source does not fit are left out.

        Raises:
            ValueError: if the data or the vocabulary cannot be used.
        """
        planner, sources = self._planner(packing=False), self._fitting_sources
        return _planned(
            lambda: planner.one_pass(sources),
            self._params.batch_size,
            self._decode_batch,
        )

    @functools.cached_property
    def _measured(self) -> MeasuredPairs:
        data_dir = self._params.data_dir
        vocabulary = self.vocabulary
        source = JoinedPairs([data.Open(data_dir) for data in self._datasets])
        measured = measure(source, vocabulary)
        self._language_ids(measured)  # Raises an error if a token is missing.
        return measured

    @functools.cached_property
    def _fitting(self) -> np.ndarray:
        """Sentences whose source and target fit."""
        return self._measured.fitting(*self._limits(), self._params.allow_left_out)

    @functools.cached_property
    def _fitting_sources(self) -> np.ndarray:
        """Sentences whose source fits, the longest first."""
        source, _ = self._limits()
        measured = self._measured
        fitting = measured.fitting(source, None, self._params.allow_left_out)
        return fitting[np.argsort(-measured.num_tokens[fitting, 0], kind="stable")]

    def _limits(self) -> tuple[RowLimit, RowLimit]:
        """Returns the limits of a source and of a target."""
        p = self._params
        return (
            RowLimit("source_length", p.source_length, 1 + bool(p.language_tokens)),
            RowLimit("target_length", p.target_length, 1),
        )

    def _planner(self, packing: bool) -> BatchPlanner:
        p = self._params
        source, target = self._limits()
        added = np.array([source.added, target.added], np.int32)
        return BatchPlanner(
            self._measured.num_tokens + added,
            (source.length, target.length) if packing else None,
            p.batch_size,
        )

    def _batches(self, plans: Callable[[], Iterator[BatchPlan]]) -> tf.data.Dataset:
        return _planned(plans, self._params.batch_size, self._batch)

    def _batch(self, plan: BatchPlan) -> NestedMap:
        p = self._params
        source, target, *_ = fetch(self._measured.source, plan.sentences)
        return NestedMap(
            source=self._source_stream(source, plan),
            target=target_rows(
                self.vocabulary.Tokenize(target),
                plan.row_sizes,
                p.target_length,
                self.vocabulary,
            ),
        )

    def _decode_batch(self, plan: BatchPlan) -> NestedMap:
        source, target, source_language, target_language = fetch(
            self._measured.source, plan.sentences
        )
        missing = tf.size(plan.row_sizes) - tf.size(plan.sentences)

        def padded(values: tf.Tensor) -> tf.Tensor:
            padding = tf.zeros([missing], values.dtype)
            return tf.ensure_shape(
                tf.concat([values, padding], 0), plan.row_sizes.shape
            )

        return NestedMap(
            source=self._source_stream(source, plan),
            source_text=padded(source),
            target_text=padded(target),
            source_language=padded(source_language),
            target_language=padded(target_language),
            place=padded(plan.sentences),
            weight=tf.cast(plan.row_sizes, tf.float32),
        )

    def _source_stream(self, texts: tf.Tensor, plan: BatchPlan) -> NestedMap:
        languages = None
        if self._params.language_tokens:
            by_pair = tf.constant(self._language_ids(self._measured), tf.int32)
            pair_of = tf.numpy_function(
                lambda numbers: self._measured.pair_of[numbers],
                [plan.sentences],
                tf.int32,
                stateful=False,
            )
            languages = tf.gather(by_pair, tf.ensure_shape(pair_of, [None]))
        return source_rows(
            self.vocabulary.Tokenize(texts),
            languages,
            plan.row_sizes,
            self._params.source_length,
            self.vocabulary,
        )

    def _language_ids(self, measured: MeasuredPairs) -> list[int]:
        if not self._params.language_tokens:
            return []
        return self.vocabulary.LanguageIds([target for _, target in measured.pairs])


def _planned(
    plans: Callable[[], Iterator[BatchPlan]],
    batch_size: int,
    make_batch: Callable[[BatchPlan], NestedMap],
) -> tf.data.Dataset:
    """Returns the planned batches in order, with prefetching."""
    spec = BatchPlan(
        tf.TensorSpec([None], tf.int64), tf.TensorSpec([batch_size], tf.int32)
    )
    planned = tf.data.Dataset.from_generator(plans, output_signature=spec)
    make = tf.autograph.experimental.do_not_convert(make_batch)
    return planned.map(make, tf.data.AUTOTUNE, deterministic=True).prefetch(
        _BATCHES_AHEAD
    )
