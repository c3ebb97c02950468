"""Batches of sentences and their translations, in one or many pairs of languages.

Shapes: B rows in a batch, S source and T target tokens in a row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.text.batch_plan import BatchPlan, BatchPlanner
from lingvo_pipe.input.text.measured_pairs import MeasuredPairs, fetch, measure
from lingvo_pipe.input.text.mixture_order import MixtureOrder
from lingvo_pipe.input.text.plan_places import PlanPlaces
from lingvo_pipe.input.text.row_limit import RowLimit
from lingvo_pipe.input.text.sentence_pairs import JoinedPairs
from lingvo_pipe.input.text.temperature import sampling_probabilities
from lingvo_pipe.input.text.text_input_checks import (
    check_data,
    check_sizes,
    check_start_step,
)
from lingvo_pipe.input.text.token_rows import source_rows, target_rows
from lingvo_pipe.input.text.vocabulary import Vocabulary, open_vocabulary
from lingvo_pipe.nested_map import NestedMap

_BATCHES_AHEAD = 2
_STREAM = ("ids", "segment_ids", "segment_pos")


class TranslationInput:
    """Reads translated sentences, tokenizes them, and packs them into rows.

    A batch is a NestedMap of

    - source: `ids`, `segment_ids` and `segment_pos`, int32 [B, S];
    - target: the same, [B, T]; `labels`, int32 [B, T], one token ahead of the `ids`;
      and `weights`, float32 [B, T], 1 for a token and 0 for padding.

    Sentences of a row are segments 1, 2, ... of it; 0 is padding. A source is a
    language's token, if there are any, the sentence and the token of the end; labels
    are the translation and the token of the end. No sentence is ever split or cut off.

    Training mixes the pairs of languages by `temperature`. Batches depend on nothing
    but the params, the data and the step, so a resumed run reads the batches that the
    uninterrupted run would have read.

    The data are opened, and their tokens counted, when they are first read from: what
    is known without, such as `element_spec`, can be had without the data.

    Args:
        params: The params.

    Raises:
        ValueError: If a param is unset or out of range. Later, if the data, or the
            vocabulary, can't be read or used.
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Returns the params of the input."""
        p = InstantiableParams(cls)
        p.Define(
            "data",
            [],
            "What to read: params of ParallelFiles, TsvFile, TfdsPairs or your own "
            "PairDataset, in a list. Pairs of languages may be in several of them.",
        )
        p.Define(
            "data_dir",
            None,
            "Where data sets lie, and where names of files begin; None: the default of "
            "tfds, and where the program is started.",
        )
        p.Define("vocab_file", None, "The vocabulary, made by lingvo_pipe_train_vocab.")
        p.Define("vocab_size", None, "Tokens in it: num_tokens of the model.")
        p.Define(
            "language_tokens",
            True,
            "Whether a source begins with the token of the language to translate to.",
        )
        p.Define("batch_size", None, "B, rows in a batch, over all micro-batches.")
        p.Define("source_length", None, "S, tokens in a row of sources.")
        p.Define("target_length", None, "T, tokens in a row of translations.")
        p.Define("packing", True, "Whether rows hold as many sentences as they can.")
        p.Define(
            "allow_left_out",
            True,
            "Whether sentences that are empty, or longer than a row, are left out, and "
            "counted in the log; False: they are an error.",
        )
        p.Define(
            "temperature",
            5.0,
            "How even the pairs of languages are in training: 1: each sentence is read "
            "as often as every other; infinity: each pair is.",
        )
        p.Define("shuffle", True, "Whether training shuffles each pair's sentences.")
        p.Define("random_seed", 0, "Chooses the order of training.")
        return p

    def __init__(self, params: InstantiableParams) -> None:
        check_sizes(
            params, "batch_size", "source_length", "target_length", "vocab_size"
        )
        check_data(params)
        sampling_probabilities([1], params.temperature)
        self._params = params
        for limit in self._Limits():
            limit.check()
        self._datasets = [data.Instantiate() for data in params.data]
        self._places: PlanPlaces | None = None

    @property
    def params(self) -> InstantiableParams:
        return self._params

    @property
    def element_spec(self) -> NestedMap:
        """The tf.TensorSpec of each part of a batch."""
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
            start_step: The steps already trained.
            place: What `Place` said of them, if it is known: the same batches come, and
                what was before them is not packed again.

        Raises:
            ValueError: If `start_step` is negative, or the data or the vocabulary can't
                be used.
        """
        check_start_step(start_step)
        p, measured = self._params, self._measured
        fitting = self._fitting
        members = {
            name: fitting[measured.pair_of[fitting] == place]
            for place, name in enumerate(measured.names())
        }
        order = MixtureOrder(members, p.temperature, p.random_seed, p.shuffle)
        planner = self._Planner(p.packing)
        places = self._places = PlanPlaces(planner, order)
        start = places.read(place, start_step)

        def plans() -> Iterator[BatchPlan]:
            for begin, plan in planner.training(order, start_step, start):
                places.add(begin)
                yield plan

        return self._Batches(plans)

    def Place(self, step: int) -> str:
        """Where the last of the training batches that were read before `step` begins.

        Args:
            step: The number of steps whose batches were read. Empty if none was.
        """
        return "" if self._places is None else self._places.text_before(step)

    def EvalBatches(self) -> tf.data.Dataset:
        """Returns one pass over all sentences, in their order; the last rows are empty.

        Raises:
            ValueError: If the data or the vocabulary can't be used.
        """
        planner, fitting = self._Planner(self._params.packing), self._fitting
        return self._Batches(lambda: planner.one_pass(fitting))

    def DecodeBatches(self) -> tf.data.Dataset:
        """Returns one pass over all sources, to be translated, a sentence a row.

        The longest come first, so that those of a batch are of about one length: a
        batch takes as long as its longest translation.

        A batch is a NestedMap of

        - source: as in other batches;
        - source_text, target_text: string [B], the sentence and its translation;
        - source_language, target_language: string [B];
        - place: int64 [B], the sentence's number in the data, from 0;
        - weight: float32 [B], 1 for a sentence, and 0 for the padding at the end, whose
          texts are empty.

        A sentence is left out only if its source does not fit.

        Raises:
            ValueError: If the data or the vocabulary can't be used.
        """
        planner, sources = self._Planner(packing=False), self._fitting_sources
        return _planned(
            lambda: planner.one_pass(sources), self._params.batch_size, self._Decode
        )

    @functools.cached_property
    def _measured(self) -> MeasuredPairs:
        data_dir = self._params.data_dir
        vocabulary = self.vocabulary
        source = JoinedPairs([data.Open(data_dir) for data in self._datasets])
        measured = measure(source, vocabulary)
        self._LanguageIds(measured)  # Raises an error if one is missing.
        return measured

    @functools.cached_property
    def _fitting(self) -> np.ndarray:
        """The sentences of which source and target fit."""
        return self._measured.fitting(*self._Limits(), self._params.allow_left_out)

    @functools.cached_property
    def _fitting_sources(self) -> np.ndarray:
        """The sentences of which the source fits, the longest first."""
        source, _ = self._Limits()
        measured = self._measured
        fitting = measured.fitting(source, None, self._params.allow_left_out)
        return fitting[np.argsort(-measured.num_tokens[fitting, 0], kind="stable")]

    def _Limits(self) -> tuple[RowLimit, RowLimit]:
        """The room for a source and for a target."""
        p = self._params
        return (
            RowLimit("source_length", p.source_length, 1 + bool(p.language_tokens)),
            RowLimit("target_length", p.target_length, 1),
        )

    def _Planner(self, packing: bool) -> BatchPlanner:
        p = self._params
        source, target = self._Limits()
        added = np.array([source.added, target.added], np.int32)
        return BatchPlanner(
            self._measured.num_tokens + added,
            (source.length, target.length) if packing else None,
            p.batch_size,
        )

    def _Batches(self, plans: Callable[[], Iterator[BatchPlan]]) -> tf.data.Dataset:
        return _planned(plans, self._params.batch_size, self._Batch)

    def _Batch(self, plan: BatchPlan) -> NestedMap:
        p = self._params
        source, target, *_ = fetch(self._measured.source, plan.sentences)
        return NestedMap(
            source=self._Source(source, plan),
            target=target_rows(
                self.vocabulary.Tokenize(target),
                plan.row_sizes,
                p.target_length,
                self.vocabulary,
            ),
        )

    def _Decode(self, plan: BatchPlan) -> NestedMap:
        parts = fetch(self._measured.source, plan.sentences)
        missing = tf.size(plan.row_sizes) - tf.size(plan.sentences)

        def padded(values: tf.Tensor) -> tf.Tensor:
            padding = tf.zeros([missing], values.dtype)
            return tf.ensure_shape(
                tf.concat([values, padding], 0), plan.row_sizes.shape
            )

        return NestedMap(
            source=self._Source(parts[0], plan),
            source_text=padded(parts[0]),
            target_text=padded(parts[1]),
            source_language=padded(parts[2]),
            target_language=padded(parts[3]),
            place=padded(plan.sentences),
            weight=tf.cast(plan.row_sizes, tf.float32),
        )

    def _Source(self, texts: tf.Tensor, plan: BatchPlan) -> NestedMap:
        languages = None
        if self._params.language_tokens:
            by_pair = tf.constant(self._LanguageIds(self._measured), tf.int32)
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

    def _LanguageIds(self, measured: MeasuredPairs) -> list[int]:
        if not self._params.language_tokens:
            return []
        return self.vocabulary.LanguageIds([target for _, target in measured.pairs])


def _planned(
    plans: Callable[[], Iterator[BatchPlan]],
    batch_size: int,
    make_batch: Callable[[BatchPlan], NestedMap],
) -> tf.data.Dataset:
    """Returns the batches that are planned, in order, some of them made ahead."""
    spec = BatchPlan(
        tf.TensorSpec([None], tf.int64), tf.TensorSpec([batch_size], tf.int32)
    )
    planned = tf.data.Dataset.from_generator(plans, output_signature=spec)
    make = tf.autograph.experimental.do_not_convert(make_batch)
    return planned.map(make, tf.data.AUTOTUNE, deterministic=True).prefetch(
        _BATCHES_AHEAD
    )
