"""Translated sentences, K of N, from two kinds of TensorFlow Datasets.

- Examples with a text for each language, as `tfds.features.Translation`, such as in
  `wmt14_translate/de-en`. Each of the texts can be source or target.
- Examples with the texts `source`, `target`, `source_language` and `target_language`.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from lingvo_pipe.core.checks import is_sequence
from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.hyperparams.param_rules import NAME, Rule, check_params, optional
from lingvo_pipe.input.prepared_dataset import (
    find_builder,
    open_records,
    prepared_builder,
)
from lingvo_pipe.input.text.sentence_pairs import JoinedPairs, PairSource, SentencePairs

_CHUNK_SIZE = 1024


class TfdsPairs:
    """A data set of translations that TensorFlow Datasets has prepared.

    Raises:
        ValueError: if a param is wrong.
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Returns the params of the data set."""
        p = InstantiableParams(cls)
        p.Define("dataset", None, "Name, such as wmt14_translate/de-en.")
        p.Define("split", "train", "Split to read, such as test or train[:90%].")
        p.Define(
            "pairs",
            None,
            "Language pairs to read, such as [('de', 'en')] for German to English. If "
            "None, all pairs, in both directions where possible.",
        )
        return p

    def __init__(self, params: InstantiableParams) -> None:
        p = self._params = params
        rules = {"dataset": NAME, "split": NAME, "pairs": _PAIRS}
        check_params(p, rules)

    def Languages(self, data_dir: str | None) -> list[str] | None:
        """Returns the languages that every example has, or None if examples differ."""
        features = find_builder(self._params.dataset, data_dir).info.features
        if isinstance(features, tfds.features.Translation):
            return sorted(features)
        features_by_name = dict(features.items()) if hasattr(features, "items") else {}
        if all(
            isinstance(features_by_name.get(n), tfds.features.Text) for n in _FIELDS
        ):
            return None
        names = ", ".join(sorted(features_by_name)) or features
        expected = f"a text for each language, or the texts {', '.join(_FIELDS)}"
        got = Words(f"{self._params.dataset} with {names}")
        raise UserValueError(path="dataset", expected=expected, got=got)

    def TargetLanguages(self, data_dir: str | None) -> Sequence[str] | None:
        """Returns the languages to translate to, or None if only examples name them."""
        p = self._params
        if p.pairs is not None:
            return [target for _, target in p.pairs]
        builder = find_builder(p.dataset, data_dir)
        languages: Sequence[str] | None = getattr(builder, "target_languages", None)
        return languages or self.Languages(data_dir)

    def Open(self, data_dir: str | None) -> PairSource:
        """Returns the sentences of the split, in the language pairs of the params."""
        p = self._params
        languages = self.Languages(data_dir)
        records = _Records(prepared_builder(p.dataset, data_dir), p.split)
        if languages is None:
            return _Rows(records, p.pairs)
        _check_known(p.pairs or [], languages, p.dataset)
        pairs = p.pairs or list(itertools.permutations(languages, 2))
        return JoinedPairs([_Translations(records, pair) for pair in pairs])


_FIELDS = SentencePairs._fields
_Pairs = Sequence[tuple[str, str]]


class _Records:
    def __init__(self, builder: Any, split: str) -> None:
        self.name = f"{builder.info.full_name}, split {split!r}"
        self._stored = open_records(builder, split)

    def __len__(self) -> int:
        return len(self._stored)

    def texts(self, numbers: np.ndarray, names: Sequence[str]) -> np.ndarray:
        """Returns the fields `names` of examples, as bytes [len(names), K]."""
        rows = []
        for stored in self._stored.__getitems__(numbers.tolist()):
            features = tf.train.Example.FromString(stored).features.feature
            rows.append([features[name].bytes_list.value[0] for name in names])
        return np.array(rows, object).T


class _Translations:
    """A `PairSource` of all examples, translated in one direction."""

    def __init__(self, records: _Records, pair: tuple[str, str]) -> None:
        self._records, self._pair = records, pair
        self.num_sentences = len(records)

    def Fetch(self, numbers: np.ndarray) -> SentencePairs:
        languages = (np.full(len(numbers), x.encode(), object) for x in self._pair)
        return SentencePairs(*self._records.texts(numbers, self._pair), *languages)

    def Where(self, number: int) -> str:
        return f"example {number} of {self._records.name}"


class _Rows:
    """A `PairSource` of the examples in the languages `pairs`, or of all examples."""

    def __init__(self, records: _Records, pairs: _Pairs | None) -> None:
        self._records = records
        all_numbers = np.arange(len(records))
        self._chosen = (
            all_numbers if pairs is None else self._select(all_numbers, pairs)
        )
        self.num_sentences = len(self._chosen)

    def Fetch(self, numbers: np.ndarray) -> SentencePairs:
        return SentencePairs(*self._records.texts(self._chosen[numbers], _FIELDS))

    def Where(self, number: int) -> str:
        return f"example {self._chosen[number]} of {self._records.name}"

    def _select(self, all_numbers: np.ndarray, pairs: _Pairs) -> np.ndarray:
        example_pairs: list[tuple[str, str]] = []
        for first in range(0, len(all_numbers), _CHUNK_SIZE):
            numbers = all_numbers[first : first + _CHUNK_SIZE]
            languages = self._records.texts(numbers, _FIELDS[2:]).T
            example_pairs += [
                (source.decode(), target.decode()) for source, target in languages
            ]
        present_pairs = set(example_pairs)
        _check_known(
            pairs, sorted(set(itertools.chain(*present_pairs))), self._records.name
        )
        missing = [pair for pair in map(tuple, pairs) if pair not in present_pairs]
        if missing:
            expected = f"pairs that {self._records.name} has examples of"
            raise UserValueError(path="pairs", expected=expected, got=missing)
        chosen = set(map(tuple, pairs))
        return np.flatnonzero([pair in chosen for pair in example_pairs])


def _is_pair(value: Any) -> bool:
    is_two = is_sequence(value, 2) and all(isinstance(x, str) for x in value)
    return is_two and value[0] != value[1]


def _are_pairs(value: Any) -> bool:
    is_list = is_sequence(value) and all(map(_is_pair, value))
    return is_list and 0 < len(value) == len(set(map(tuple, value)))


_PAIRS = optional(
    Rule(_are_pairs, "pairs of different languages, each once, such as [('de', 'en')]")
)


def _check_known(pairs: _Pairs, languages: Sequence[str], dataset: str) -> None:
    for language in itertools.chain.from_iterable(pairs):
        if language not in languages:
            expected = f"languages of {dataset}: {', '.join(languages)}"
            raise UserValueError(
                path="pairs", expected=expected, got=language, names=languages
            )
