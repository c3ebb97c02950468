"""Batches of translations: B rows of S source and T target tokens, K sentences."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from lingvo_pipe.core.checks import check_counts, is_sequence
from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.hyperparams.param_rules import (
    SWITCH,
    Rule,
    check_params,
    number_between,
)
from lingvo_pipe.input.data_fingerprint import DataFingerprint
from lingvo_pipe.input.text import measured_pairs
from lingvo_pipe.input.text.batch_plan import BatchPlan, BatchPlanner, PlanPositions
from lingvo_pipe.input.text.mixture_order import MixtureOrder
from lingvo_pipe.input.text.sentence_pairs import JoinedPairs, known_targets
from lingvo_pipe.input.text.text_input import TextInput
from lingvo_pipe.input.text.token_rows import source_rows, target_rows
from lingvo_pipe.input.tf_data import call_numpy, make_batches
from lingvo_pipe.nested_map import NestedMap

_STREAM = ("ids", "segment_ids", "segment_pos")
_SWITCHES = ("language_tokens", "packing", "allow_left_out", "shuffle")


def _are_datasets(value: Any) -> bool:
    is_list = is_sequence(value) and len(value) > 0
    return is_list and all(isinstance(x, InstantiableParams) for x in value)


_DATASETS = Rule(
    _are_datasets,
    "a list of params of data sets, such as "
    "[TfdsPairs.Params().Set(dataset='wmt14_translate/de-en')]",
)


class TranslationInput(TextInput):
    """Packed rows of tokenized, translated sentences.

    A batch is a NestedMap of

    - source: `ids`, `segment_ids` and `segment_pos`, int32 `[B, S]`.
    - target: the same, `[B, T]`, and also `labels`, int32 `[B, T]`, one token ahead of
      the `ids`, and `weights`, float32 `[B, T]`, 1 for a token and 0 for padding.

    The sentences of a row are segments 1, 2, ..., and 0 is padding. A source is the
    language token (if `language_tokens` is True), the sentence and the end token.
    Labels are the translation and the end token. No sentence is ever split or
    truncated.

    Training mixes the language pairs by `temperature`. Batches depend only on the
    params, the data and the step. Raises ValueError if a param is unset or out of range
    or, when data are first read, if the data or the vocabulary cannot be used.
    """

    SIZES = ("batch_size", "source_length", "target_length", "vocab_size")

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
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
        p.Define(
            "language_tokens",
            True,
            "If True, a source begins with the token of the target language.",
        )
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
        return p

    def __init__(self, params: InstantiableParams) -> None:
        super().__init__(params)
        switches = dict.fromkeys(_SWITCHES, SWITCH)
        rules = {"data": _DATASETS, "temperature": number_between(1), **switches}
        check_params(params, rules)
        for limit in self._limits():
            limit.check()
        self._datasets = [template.Instantiate() for template in params.data]
        self._positions: PlanPositions | None = None

    @property
    def element_spec(self) -> NestedMap:
        p = self.params
        source = tf.TensorSpec((p.batch_size, p.source_length), tf.int32)
        target = tf.TensorSpec((p.batch_size, p.target_length), tf.int32)
        labeled = NestedMap(dict.fromkeys((*_STREAM, "labels"), target))
        labeled.weights = tf.TensorSpec(target.shape, tf.float32)
        return NestedMap(
            source=NestedMap(dict.fromkeys(_STREAM, source)), target=labeled
        )

    def TrainBatches(self, start_step: int = 0, place: str = "") -> tf.data.Dataset:
        """Returns the endless batches of training, from step `start_step` on.

        If `place`, from `Place`, is given, most earlier sentences are not packed again.
        """
        check_counts(start_step=start_step, minimum=0)
        planner, order = self._planner(self.params.packing), self._order
        positions = self._positions = PlanPositions(planner, order)

        def plans() -> Iterator[BatchPlan]:
            # Not before, since a position in other data is logged, and only once.
            start = positions.read(place, start_step)
            for begin, plan in planner.training(order, start_step, start):
                positions.add(begin)
                yield plan

        return self._batches(plans, self._batch)

    def Place(self, step: int) -> str:
        """Returns the position in the data of training batch `step - 1`, as text.

        The text is `TrainBatches`'s argument `place`, or "" if the position is unknown.
        """
        return "" if self._positions is None else self._positions.text_before(step)

    def EvalBatches(self) -> tf.data.Dataset:
        """Returns batches with all sentences once, in order. Last rows may be empty."""
        planner, fitting = self._planner(self.params.packing), self._fitting
        return self._batches(lambda: planner.one_pass(fitting), self._batch)

    def DecodeBatches(self) -> tf.data.Dataset:
        """Returns one pass over all sources to translate, one per row, longest first.

        Sources are sorted because a batch takes as long as its longest translation. A
        batch is a NestedMap of

        - source: as in training batches.
        - source_text, target_text: string `[B]`, the sentence and its translation.
        - source_language, target_language: string `[B]`.
        - place: int64 `[B]`, the sentence's number in the data, from 0.
        - weight: float32 `[B]`, 1 for a sentence and 0 for padding, with empty texts.

        Only sentences whose source does not fit are left out.
        """
        planner, sources = self._planner(packing=False), self._fitting_sources
        return self._batches(lambda: planner.one_pass(sources), self._decode_batch)

    def TargetLanguages(self) -> list[str]:
        """Returns the languages to translate to, sorted.

        The data sets name the languages, or else the vocabulary does.
        """
        p, languages = self.params, set[str]()
        for data, data_params in zip(self._datasets, p.data, strict=True):
            targets = known_targets(data, data_params, p.data_dir)
            if targets is None:
                targets = self.vocabulary.languages if p.language_tokens else []
            languages.update(targets)
        return sorted(languages)

    def NumTokens(self, sentences: Sequence[str]) -> np.ndarray:
        """Returns the number of tokens of each sentence, int64 `[K]`.

        Raises:
            ValueError: if a sentence is too long.
        """
        limit, _ = self._limits()
        num_tokens = self.vocabulary.Tokenize(tf.constant(sentences)).row_lengths()
        longest = int(tf.argmax(num_tokens))
        if num_tokens[longest] > limit.max_tokens:
            needed = num_tokens[longest] + limit.added
            raise UserValueError(
                path=f"input.{limit.param}",
                expected=f"room for sentence {longest + 1} of {needed} tokens",
                got=limit.length,
                hint="Break the sentence up, or raise it: no weight depends on it.",
            )
        return num_tokens.numpy()

    def SentenceBatch(self, sentences: tf.Tensor, language: tf.Tensor) -> NestedMap:
        """Returns a batch with the `source` of sentences, string `[B]`, one per row.

        The batch's `weight`, float32 `[B]`, is 0 for a sentence without tokens.
        `language`, string `[]`, is one of `TargetLanguages`.
        """
        tokens, (limit, _) = self.vocabulary.Tokenize(sentences), self._limits()
        tf.debugging.assert_less_equal(
            tokens.row_lengths(),
            tf.constant(limit.max_tokens, tf.int64),
            f"Expected sentences of at most {limit.max_tokens} tokens.",
        )
        ones = tf.ones_like(sentences, tf.int32)
        languages = None
        if self.params.language_tokens:
            languages = ones * self.vocabulary.LanguageId(language)
        return NestedMap(
            source=source_rows(tokens, languages, ones, limit.length, self.vocabulary),
            weight=tf.cast(tokens.row_lengths() > 0, tf.float32),
        )

    @functools.cached_property
    def _measured(self) -> measured_pairs.MeasuredPairs:
        data_dir, vocabulary = self.params.data_dir, self.vocabulary
        source = JoinedPairs([data.Open(data_dir) for data in self._datasets])
        measured = measured_pairs.measure(source, vocabulary)
        targets = sorted({target for _, target in measured.pairs})
        if self.params.language_tokens:
            self._language_ids(measured)  # A missing token is an error here.
        elif len(targets) > 1:
            raise UserValueError(
                path="input.language_tokens",
                expected=f"True for the target languages {', '.join(targets)}",
                got=False,
            )
        return measured

    @functools.cached_property
    def _fitting(self) -> np.ndarray:
        return self._measured.fitting(*self._limits(), self.params.allow_left_out)

    @functools.cached_property
    def data_fingerprint(self) -> DataFingerprint:
        """A fingerprint of the sentences' numbers of tokens, and of which fit."""
        return DataFingerprint("", [self._measured.num_tokens, self._fitting])

    @functools.cached_property
    def _order(self) -> MixtureOrder:
        p, measured, fitting = self.params, self._measured, self._fitting
        first_batch = next(self._planner(p.packing).one_pass(fitting))
        self._warn_of_repeats(int(np.count_nonzero(first_batch.row_sizes)))
        members = {
            name: fitting[measured.pair_of[fitting] == pair]
            for pair, name in enumerate(measured.names())
        }
        return MixtureOrder(members, p.temperature, p.random_seed, p.shuffle)

    @functools.cached_property
    def _fitting_sources(self) -> np.ndarray:
        source, _ = self._limits()
        measured = self._measured
        fitting = measured.fitting(source, None, self.params.allow_left_out)
        return fitting[np.argsort(-measured.num_tokens[fitting, 0], kind="stable")]

    def _limits(self) -> tuple[measured_pairs.RowLimit, measured_pairs.RowLimit]:
        p = self.params
        return (
            measured_pairs.RowLimit(
                "source_length", p.source_length, 1 + bool(p.language_tokens)
            ),
            measured_pairs.RowLimit("target_length", p.target_length, 1),
        )

    def _planner(self, packing: bool) -> BatchPlanner:
        p = self.params
        source, target = self._limits()
        added = np.array([source.added, target.added], np.int32)
        return BatchPlanner(
            self._measured.num_tokens + added,
            (source.length, target.length) if packing else None,
            p.batch_size,
        )

    def _batches(
        self, plans: Callable[[], Iterator[BatchPlan]], make: Callable
    ) -> tf.data.Dataset:
        row_sizes = tf.TensorSpec([self.params.batch_size], tf.int32)
        spec = BatchPlan(tf.TensorSpec([None], tf.int64), row_sizes)
        planned = tf.data.Dataset.from_generator(plans, output_signature=spec)
        return make_batches(planned, make)

    def _batch(self, plan: BatchPlan) -> NestedMap:
        length, vocabulary = self.params.target_length, self.vocabulary
        source, target, *_ = measured_pairs.fetch(self._measured.source, plan.sentences)
        stream = self._source_stream(source, plan)
        tokens = vocabulary.Tokenize(target)
        labeled = target_rows(tokens, plan.row_sizes, length, vocabulary)
        return NestedMap(source=stream, target=labeled)

    def _decode_batch(self, plan: BatchPlan) -> NestedMap:
        fields = measured_pairs.fetch(self._measured.source, plan.sentences)
        missing = tf.size(plan.row_sizes) - tf.size(plan.sentences)

        def padded(values: tf.Tensor) -> tf.Tensor:
            extended = tf.concat([values, tf.zeros([missing], values.dtype)], 0)
            return tf.ensure_shape(extended, plan.row_sizes.shape)

        names = ("source_text", "target_text", "source_language", "target_language")
        source = self._source_stream(fields[0], plan)
        return NestedMap(
            zip(names, map(padded, fields), strict=True),
            source=source,
            place=padded(plan.sentences),
            weight=tf.cast(plan.row_sizes, tf.float32),
        )

    def _source_stream(self, texts: tf.Tensor, plan: BatchPlan) -> NestedMap:
        languages = None
        if self.params.language_tokens:
            by_pair = tf.constant(self._language_ids(self._measured), tf.int32)
            pair_of = call_numpy(
                lambda numbers: self._measured.pair_of[numbers],
                plan.sentences,
                tf.TensorSpec([None], tf.int32),
            )
            languages = tf.gather(by_pair, pair_of)
        return source_rows(
            self.vocabulary.Tokenize(texts),
            languages,
            plan.row_sizes,
            self.params.source_length,
            self.vocabulary,
        )

    def _language_ids(self, measured: measured_pairs.MeasuredPairs) -> list[int]:
        return self.vocabulary.LanguageIds([target for _, target in measured.pairs])
