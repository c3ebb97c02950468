"""Batches of running text: every token once an epoch, the same from any step on."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.input.input_generator import InputGenerator
from tests.input.text.read_batches import assert_same, digest_of, take
from tests.input.text.small_texts import language_model_input, pairs_of
from tests.support.cases import exhaustive
from tests.support.errors import fails

NUM_BATCHES = 34
DOCUMENTS = [pair[0] for pair in pairs_of("aa", "bb")] + [
    pair[0] for pair in pairs_of("bb", "aa")
]


@pytest.fixture(scope="module")
def plain(folder):
    return language_model_input(folder)


@pytest.fixture(scope="module")
def evaluated(plain):
    """The batches of an evaluation."""
    return take(plain.EvalBatches())


@pytest.fixture(scope="module")
def training(folder):
    """Reads the first batches of training."""

    @functools.cache
    def read(shuffle):
        source = language_model_input(folder, shuffle=shuffle)
        return take(source.TrainBatches(), NUM_BATCHES)

    return read


def documents_of(given):
    """Each document's tokens and that of the end."""
    eos_id = given.vocabulary.eos_id
    return [[*x, eos_id] for x in given.vocabulary.Tokenize(DOCUMENTS).to_list()]


def rows_of(batches, name):
    return [
        row[weights > 0]
        for batch in batches
        for row, weights in zip(batch[name], batch.weights, strict=True)
    ]


def test_evaluation_has_every_token_in_order(plain, evaluated):
    labels = np.concatenate(rows_of(evaluated, "labels"))
    np.testing.assert_array_equal(labels, np.concatenate(documents_of(plain)))
    read = [[plain.vocabulary.bos_id, *x[:-1]] for x in documents_of(plain)]
    ids = np.concatenate(rows_of(evaluated, "ids"))
    np.testing.assert_array_equal(ids, np.concatenate(read))
    weights = np.concatenate([batch.weights for batch in evaluated]).ravel()
    assert not np.diff(weights).max() > 0  # Padding is at the end alone.


def test_segments_are_the_documents_of_a_row(plain, evaluated):
    documents = documents_of(plain)
    numbers = np.repeat(np.arange(len(documents)), [len(x) for x in documents])
    begun = 0
    for segment_ids, places in zip(
        *(rows_of(evaluated, name) for name in ("segment_ids", "segment_pos")),
        strict=True,
    ):
        own = numbers[begun : begun + len(segment_ids)]
        begun += len(segment_ids)
        if len(own):
            np.testing.assert_array_equal(segment_ids, own - own[0] + 1)
        for segment in set(segment_ids.tolist()):
            found = places[segment_ids == segment]
            np.testing.assert_array_equal(found, np.arange(len(found)))
    for batch in evaluated:
        for part in ("ids", "labels", "segment_ids", "segment_pos"):
            assert not batch[part][batch.weights == 0].any()


def test_unshuffled_training_begins_like_evaluation(folder, evaluated):
    given = language_model_input(folder, shuffle=False)
    assert_same(take(given.TrainBatches(), 3), evaluated[:3])


@pytest.mark.parametrize(
    ("start_step", "shuffle"),
    [exhaustive(1, True), exhaustive(9, False), (22, True)],
)
def test_training_resumes_exactly(folder, training, start_step, shuffle):
    resumed = language_model_input(folder, shuffle=shuffle).TrainBatches(start_step)
    batches = take(resumed, NUM_BATCHES - start_step)
    assert_same(batches, training(shuffle)[start_step:])


def test_documents_that_changed_since_the_checkpoint_are_told_once(
    folder, plain, logged
):
    place = plain.Place(3)
    plain.TrainBatches(3, place)
    assert not logged
    fewer = language_model_input(folder, files=["aa-bb.aa"])
    for _ in range(2):
        fewer.TrainBatches(3, place)
    assert len(logged) == 1


def test_a_far_step_costs_no_more_than_the_first(plain):
    assert len(take(plain.TrainBatches(10**9), 2)) == 2


def test_batches_never_change(training):
    # Other bytes here would break every run that is resumed.
    assert digest_of(training(True)[30:34]) == "521c708e3f0a71e2"


def test_paragraphs_may_be_documents(folder):
    lines = "first line\nsecond line\n\nanother\n"
    (folder / "paragraphs").write_text(lines)
    given = language_model_input(folder, files=["paragraphs"], documents="blank_lines")
    ends = [
        (batch.labels == given.vocabulary.eos_id).sum()
        for batch in take(given.EvalBatches())
    ]
    assert sum(ends) == 2


def test_batches_are_as_was_said_without_the_data(plain, tmp_path):
    said = language_model_input(tmp_path).element_spec
    given: InputGenerator = plain
    assert given.params.batch_size == 4
    assert given.TrainBatches().element_spec == given.EvalBatches().element_spec == said


def test_text_that_the_vocabulary_cannot_write_is_told(folder, logged):
    language_model_input(folder).EvalBatches()
    assert not logged
    (folder / "other").write_text("ab щ щ\n", encoding="utf-8")
    given = language_model_input(folder, files=["other"])
    given.EvalBatches()
    given.EvalBatches()
    (line,) = logged
    assert "small.vocab" in line
    assert "% of other." in line


def test_a_batch_with_more_rows_than_the_text_is_told_once(folder, logged):
    given = language_model_input(folder, batch_size=500)
    given.EvalBatches()
    assert not logged
    given.TrainBatches()
    given.TrainBatches()
    assert len(logged) == 1


def test_a_text_that_was_edited_is_an_error(folder):
    """Rows would be cut at other places than those that were counted."""
    (folder / "edited").write_text("a b c\n" * 8)
    given = language_model_input(folder, files=["edited"])
    batches = given.EvalBatches()
    with open(folder / "edited", "r+") as file:
        file.write("e   e\n" * 8)
    with pytest.raises(tf.errors.InvalidArgumentError):
        take(batches)


def test_missing_data_are_named(folder):
    with fails(got="aa-bb.ab"):
        language_model_input(folder, files=["aa-bb.ab"]).EvalBatches()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("length", 0), ("documents", "files"), ("files", []), ("files", "aa")],
        ("shuffle", "False"),
    ],
)
def test_params_out_of_range_are_named(folder, name, value):
    with fails(path=f"LanguageModelInput.{name}", got=value):
        language_model_input(folder, **{name: value})


def test_steps_are_not_negative(folder):
    with fails(path="start_step", got=-1):
        language_model_input(folder).TrainBatches(-1)
