"""Batches of translations: no sentence lost, each whole, the same from any step on."""

import collections
import functools
import math
import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.input_generator import InputGenerator
from lingvo_pipe.input.text.sentence_pairs import SentencePairs
from lingvo_pipe.input.text.translation_input import TranslationInput
from lingvo_pipe.nested_map import NestedMap
from tests.input.text.read_batches import (
    all_texts,
    asked_for,
    assert_same,
    digest_of,
    segments,
    take,
)
from tests.input.text.small_texts import (
    SIZES,
    VOCAB_SIZE,
    files_of,
    pairs_of,
    translation_input,
)
from tests.support.cases import exhaustive
from tests.support.errors import fails

EVERY = [
    (*sentences, *languages)
    for languages in SIZES
    for sentences in pairs_of(*languages)
]


# ---- What is in a batch.


@pytest.fixture(scope="module")
def packed(folder):
    return translation_input(folder)


@pytest.fixture(scope="module")
def epoch(packed):
    """The batches of an evaluation."""
    return take(packed.EvalBatches())


def test_an_epoch_has_every_sentence_once_and_whole(packed, epoch):
    assert sorted(all_texts(packed, epoch)) == asked_for(EVERY)


def test_packed_or_not_the_sentences_are_the_same(folder, packed, epoch):
    batches = [epoch, take(translation_input(folder, packing=False).EvalBatches())]
    assert len(batches[0]) < len(batches[1]) / 2
    texts = [sorted(all_texts(packed, found)) for found in batches]
    assert texts[0] == texts[1]
    totals = [sum(b.target.weights.sum() for b in found) for found in batches]
    assert totals[0] == totals[1]
    for batch in batches[1]:
        assert max(map(len, segments(batch.source))) == 1


def test_languages_may_be_left_unsaid(folder, packed, epoch):
    data = [files_of("bb", "aa"), files_of("cc", "aa")]  # One target language.
    untagged = translation_input(folder, data=data, language_tokens=False)
    plain, tagged = (
        [x for batch in batches for row in segments(batch.source) for x in row]
        for batches in (take(untagged.EvalBatches()), epoch)
    )
    (tag,) = packed.vocabulary.LanguageIds(["aa"])
    assert sorted(plain) == sorted(x[1:] for x in tagged if x[0] == tag)


def test_batches_are_as_was_said_without_the_data(packed, tmp_path):
    said = translation_input(tmp_path).element_spec
    given: InputGenerator = packed
    assert given.params.batch_size == 4
    assert given.TrainBatches().element_spec == given.EvalBatches().element_spec == said


# ---- Training.


@pytest.fixture(scope="module")
def training(folder):
    """Reads the first 30 batches with params, and the place after each of them."""

    @functools.cache
    def read(**values):
        source = translation_input(folder, **values)
        dataset, batches, places = source.TrainBatches(), [], []
        assert source.Place(0) == ""
        for step, batch in enumerate(dataset.take(30), 1):
            batches.append(NestedMap(batch).Transform(np.asarray))
            places.append(source.Place(step))
        return batches, places

    return read


@pytest.mark.parametrize("temperature", [2.0, exhaustive(math.inf)])
def test_the_temperature_gives_pairs_their_shares(folder, temperature):
    given = translation_input(folder, temperature=temperature)
    texts = all_texts(given, take(given.TrainBatches(), 120))[: 5 * len(EVERY)]
    pair_of = {(source, target): pair for source, target, *pair in EVERY}
    counts = collections.Counter(tuple(pair_of[text[:2]]) for text in texts)
    weights = {pair: size ** (1 / temperature) for pair, size in SIZES.items()}
    for pair, weight in weights.items():
        share = len(texts) * weight / sum(weights.values())
        assert abs(counts[pair] - share) < 1
    # Within a pair no sentence is read twice more often than another.
    again = collections.Counter(texts)
    for pair in SIZES:
        times = [
            again[source, target, to]
            for source, target, *of, to in EVERY
            if (*of, to) == pair
        ]
        assert max(times) - min(times) <= 1


@pytest.mark.parametrize(
    ("start_step", "values"),
    [
        *((29, {}), exhaustive(7, {"packing": False})),
        *(exhaustive(1, {}), exhaustive(13, {}), exhaustive(7, {"shuffle": False})),
    ],
)
def test_training_resumes_exactly(folder, training, start_step, values):
    batches, _ = training(**values)
    resumed = translation_input(folder, **values).TrainBatches(start_step)
    assert_same(take(resumed, 30 - start_step), batches[start_step:])


@pytest.mark.parametrize(
    ("step", "values"),
    [
        *((13, {}), exhaustive(1, {})),
        *(exhaustive(step, {"packing": False}) for step in (1, 13)),
    ],
)
def test_training_resumes_exactly_from_a_position(folder, training, step, values):
    batches, places = training(**values)
    assert len(set(places)) == len(places)
    resumed = translation_input(folder, **values)
    resumed_batches = iter(resumed.TrainBatches(step, places[step - 1]))
    assert_same([next(resumed_batches) for _ in range(5)], batches[step : step + 5])
    # It says the same of where it is as one that was not resumed.
    assert resumed.Place(step + 5) == places[step + 4]


def test_a_position_in_other_data_is_told_once(folder, training, logged):
    _, (place, *_) = training()
    resumed = translation_input(folder, random_seed=5)
    batches = [resumed.TrainBatches(1, place) for _ in range(2)]
    assert not logged
    take(batches[1], 2)
    assert len(logged) == 1


def test_other_sentences_have_another_fingerprint(folder):
    changes: Any = ({}, {"random_seed": 5}, {"data": [files_of("aa", "bb")]})
    inputs = (translation_input(folder, **x) for x in changes)
    one, same, other = (x.data_fingerprint.text for x in inputs)
    assert one == same != other


def test_a_batch_with_more_rows_than_the_data_is_told_once(folder, logged):
    given = translation_input(folder, batch_size=500)
    given.EvalBatches()
    assert not logged
    given.TrainBatches()
    given.TrainBatches()
    assert len(logged) == 1


def test_batches_never_change(training):
    # Other bytes here would break every run that is resumed.
    batches, _ = training()
    assert digest_of(batches[5:9]) == "90c6ad32a9768a81"


# ---- Evaluation and decoding.


def test_evaluation_is_the_same_each_time_and_ends_in_padding(packed, epoch):
    assert_same(epoch, take(packed.EvalBatches()))
    weights = np.concatenate([batch.target.weights for batch in epoch])
    empty = np.flatnonzero(~weights.any(1))
    assert empty.tolist() == list(range(len(weights) - len(empty), len(weights)))
    assert len(empty) < 4


@pytest.fixture(scope="module")
def decoded(packed):
    """The batches of a decoder."""
    return take(packed.DecodeBatches())


def test_decoding_yields_each_text_once_a_sentence_a_row(packed, decoded):
    names = ("source_text", "target_text", "source_language", "target_language")
    vocabulary = packed.vocabulary
    tokens = vocabulary.Tokenize(tf.constant([row[0] for row in EVERY])).to_list()
    languages = vocabulary.LanguageIds([row[3] for row in EVERY])
    places = []
    for batch in decoded:
        sources = segments(batch.source)
        for row in np.flatnonzero(batch.weight):
            place = batch.place[row]
            assert tuple(batch[name][row].decode() for name in names) == EVERY[place]
            tagged = [languages[place], *tokens[place], vocabulary.eos_id]
            assert sources[row] == [tagged]
            places.append(place)
    assert sorted(places) == list(range(len(EVERY)))
    last = decoded[-1]
    assert last.weight.tolist() == [1, 0, 0, 0]
    assert (
        last.source_text[1:].tolist() == last.target_language[1:].tolist() == [b""] * 3
    )
    assert not last.source.segment_ids[1:].any()


def test_sentences_of_one_length_are_decoded_together(decoded):
    # In the data's order short ones would wait for the longest of their batch.
    lengths = [np.count_nonzero(batch.source.segment_ids, 1) for batch in decoded]
    assert np.all(np.diff(np.concatenate(lengths)) <= 0)


def test_decoding_leaves_out_long_sources_alone(folder, logged):
    given = translation_input(folder, source_length=16, target_length=8)
    number = sum(batch.weight.sum() for batch in take(given.DecodeBatches()))
    lengths, target_lengths = (
        given.vocabulary.Tokenize(tf.constant(texts)).row_lengths().numpy()
        for texts in list(zip(*EVERY, strict=True))[:2]
    )
    fits = lengths + 2 <= 16  # With the tokens of the language and of the end.
    assert 0 < number == fits.sum() < len(EVERY)
    assert target_lengths[fits].max() + 1 > 8
    given.DecodeBatches()
    (line,) = logged  # Said once, however often they are asked for.
    assert re.search(r"source_length\W+16\b", line)


# ---- What can't be.


def test_long_sentences_are_counted_and_left_out(folder, logged):
    given = translation_input(folder, source_length=16, target_length=14)
    texts = all_texts(given, take(given.EvalBatches()))
    given.TrainBatches()
    (line,) = logged
    left = len(EVERY) - len(texts)
    before = line.partition("/")[0]  # The first file.
    counts = [int(found) for found in re.findall(r"(\d+)\D+\d+\D+ \w\w-\w\w\b", before)]
    assert sum(counts) == left > 0
    assert set(texts) < set(asked_for(EVERY))


def test_long_sentences_may_be_an_error(folder):
    given = translation_input(
        folder, source_length=16, target_length=14, allow_left_out=False
    )
    # Before the first batch: a test set would else be refused after the training.
    for batches in (given.TrainBatches, given.EvalBatches, given.DecodeBatches):
        with fails(path="input.data") as info:
            batches()
        assert re.search(r" aa-bb .*line \d+ of .*_length \d", info.value.got)


# ---- Data sets of one's own.


class Greetings:
    """One's own data set: what PairDataset and PairSource name, and no more."""

    num_sentences = 2

    @classmethod
    def Params(cls) -> InstantiableParams:
        return InstantiableParams(cls)

    def __init__(self, params: InstantiableParams) -> None:
        del params

    def Open(self, data_dir):
        return self

    def Fetch(self, numbers):
        rows = np.array(
            [[b"ab", b"fg", b"aa", b"bb"], [b"fg", b"ab", b"bb", b"aa"]], object
        )
        return SentencePairs(*rows[numbers].T)

    def Where(self, number):
        return f"greeting {number}"


def test_a_data_set_of_ones_own_will_do(folder):
    p = TranslationInput.Params().Set(data=[Greetings.Params()], data_dir=str(folder))
    p.Set(vocab_file="small.vocab", vocab_size=VOCAB_SIZE, batch_size=1)
    given = p.Set(source_length=20, target_length=20).Instantiate()
    found = all_texts(given, take(given.EvalBatches()))
    assert sorted(found) == [("ab", "fg", "bb"), ("fg", "ab", "aa")]
