"""Rows of tokens: what stands where, by brute force."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.input.text.token_rows import source_rows, target_rows
from tests.models.transformer.small_models import packed, predicted

LENGTH = 12


class Ids:
    """A vocabulary's tokens without texts."""

    pad_id, bos_id, eos_id = 0, 1, 9


IDS: Any = Ids()


ROWS = [
    [[[2, 3, 4], [5]], [[6, 7]], [], [[8] * 9]],
    [[[2]]],
    [[], [[2, 3], [4, 5], [6, 7]], []],
]


def flat(rows):
    sentences = [sentence for row in rows for sentence in row]
    sizes = tf.constant([len(row) for row in rows], tf.int32)
    return tf.ragged.constant(sentences, tf.int32), sizes


def assert_same(found, wanted):
    assert found.Keys() == wanted.Keys()
    for (key, one), other in zip(found.FlattenItems(), wanted.Flatten(), strict=True):
        np.testing.assert_array_equal(one, other, key)


@pytest.mark.parametrize("rows", ROWS)
def test_sources_end_with_the_end(rows):
    tokens, sizes = flat(rows)
    ended = [[[*sentence, Ids.eos_id] for sentence in row] for row in rows]
    make = tf.function(lambda: source_rows(tokens, None, sizes, LENGTH, IDS))
    assert_same(make(), packed(ended, LENGTH))


@pytest.mark.parametrize("rows", ROWS)
def test_sources_may_begin_with_a_language(rows):
    tokens, sizes = flat(rows)
    languages = tf.range(tokens.nrows(), dtype=tf.int32) + 20
    numbers = iter(range(20, 99))
    tagged = [[[next(numbers), *s, Ids.eos_id] for s in row] for row in rows]
    made = source_rows(tokens, languages, sizes, LENGTH, IDS)
    assert_same(made, packed(tagged, LENGTH))


@pytest.mark.parametrize("rows", ROWS)
def test_labels_are_one_token_ahead(rows):
    tokens, sizes = flat(rows)
    ended = [[[*sentence, Ids.eos_id] for sentence in row] for row in rows]
    make = tf.function(lambda: target_rows(tokens, sizes, LENGTH, IDS))
    assert_same(make(), predicted(ended, LENGTH))


def test_shapes_are_known_in_the_graph():
    spec = tf.RaggedTensorSpec([None, None], tf.int32)
    rows = tf.function(lambda x, sizes: target_rows(x, sizes, LENGTH, IDS))
    made = rows.get_concrete_function(spec, tf.TensorSpec([7], tf.int32))
    assert {tuple(x.shape) for x in tf.nest.flatten(made.structured_outputs)} == {
        (7, LENGTH)
    }


def test_nothing_is_cut_off():
    tokens, sizes = flat([[[2] * LENGTH]])
    told = rf"(?s)\bdata\b.*\[{LENGTH + 1}\].*\[{LENGTH}\]"
    with pytest.raises(tf.errors.InvalidArgumentError, match=told):
        target_rows(tokens, sizes, LENGTH, IDS)


@pytest.mark.parametrize("number", [3, None])
def test_the_number_of_rows_may_be_unknown(number: int | None) -> None:
    tokens, sizes = flat(ROWS[2])

    @tf.function(input_signature=[tf.TensorSpec([number], tf.int32)])
    def make(sizes: tf.Tensor) -> Any:
        return source_rows(tokens, None, sizes, LENGTH, IDS)

    ended = [[[*s, Ids.eos_id] for s in row] for row in ROWS[2]]
    assert_same(make(sizes), packed(ended, LENGTH))
    outputs = make.get_concrete_function().structured_outputs
    assert outputs.ids.shape.as_list() == [number, LENGTH]
