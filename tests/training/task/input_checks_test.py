"""An input's data sets and weights are checked before they are used."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.core.errors import UserTypeError
from lingvo_pipe.hyperparams import Params
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.task.input_checks import (
    check_weights,
    checked_batches,
    same_data_warning,
)
from tests.support.errors import fails


class Given:
    """An input whose batches are anything."""

    params: Params
    element_spec: NestedMap

    def __init__(self, batches: Any):
        self._batches = batches

    def TrainBatches(self) -> Any:
        return self._batches

    EvalBatches = TrainBatches


def _dataset(batch: Any) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensors(batch)


def test_data_sets_of_nested_maps_are_returned() -> None:
    dataset = _dataset(NestedMap(x=tf.ones([2])))
    for each in (dataset, dataset.repeat(), dataset.filter(lambda x: False)):
        assert checked_batches(Given(each), "TrainBatches") is each


@pytest.mark.parametrize(
    ("batches", "got"),
    [
        (lambda: None, "NoneType"),
        (lambda: [NestedMap(x=1)], "list"),
        (lambda: iter([]), "list_iterator"),
        (lambda: NestedMap(x=1), "NestedMap"),
        (lambda: _dataset({"x": [1.0]}), "a data set of dict"),
        (lambda: _dataset(([1.0], [2])), "a data set of tuple"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_others_are_named(batches: Callable[[], Any], got: str) -> None:
    with fails(UserTypeError, path="Given.TrainBatches", got=got):
        checked_batches(Given(batches()), "TrainBatches")


def test_an_empty_data_set_is_refused() -> None:
    empty = _dataset(NestedMap(x=[1.0])).take(0)
    with fails(path="Given.TrainBatches", got="an empty data set"):
        checked_batches(Given(empty), "TrainBatches")


def test_an_evaluation_without_end_is_refused() -> None:
    endless = _dataset(NestedMap(x=[1.0])).repeat()
    with fails(path="Given.EvalBatches", got="a data set without end"):
        checked_batches(Given(endless), "EvalBatches")


A3, B3, B4, C3, C4 = (
    f"split : '{split}'\nsize : {size}\n"
    for split, size in [("a", 3), ("b", 3), ("b", 4), ("c", 3), ("c", 4)]
)
OWN = [f"path : '{x}'\n" for x in "abc"]


@pytest.mark.parametrize(
    ("registered", "used", "told"),
    [
        ((A3, B3), (C3, C3), "input.split : 'c'"),
        ((A3, B4), (C3, C4), "input.split : 'c'"),
        (OWN[:2], OWN[2:] * 2, "input.path : 'c'"),
        ((A3, A3), (C3, C3), ""),  # They read the same data before.
        ((A3, B4), (A3, B3), ""),
        ((A3, f"{A3}batch_size : 9\n"), (A3, A3), ""),
    ],
)
def test_a_test_that_reads_the_training_data_is_told(
    registered: Sequence[str], used: Sequence[str], told: str
) -> None:
    warning = same_data_warning(registered, used)
    assert told in warning
    assert bool(told) == bool(warning)


def test_a_batch_that_no_memory_holds_is_refused_unread() -> None:
    given = Given(None)
    given.params = Params()
    given.params.Define("batch_size", 10**12, "")
    given.element_spec = NestedMap(x=tf.TensorSpec([10**12, 3]))
    got = "3,000,000,000,000 in 1,000,000,000,000 examples"
    with fails(path="input.batch_size", got=got):
        checked_batches(given, "TrainBatches")


@pytest.mark.parametrize("weight", [-1e-30, math.nan, math.inf])
def test_bad_weights_are_refused(weight: float) -> None:
    batch = NestedMap(weight=tf.constant([[1.0, weight], [0.0, 0.5]]))
    with fails(path="weight") as info:
        check_weights(batch)
    assert repr(info.value.got) == repr(float(np.float32(weight)))
    if weight < 0:
        with fails(path="weight"):
            check_weights(batch, may_be_infinite=True)
    else:
        check_weights(batch, may_be_infinite=True)


@pytest.mark.parametrize("values", [[0.0, 2.5], [0.0, 0.0], []])
def test_other_weights_are_allowed(values: list[float]) -> None:
    check_weights(NestedMap(weight=tf.constant(values)))
    check_weights(NestedMap(weight=tf.constant(values, tf.bfloat16)))
    check_weights(NestedMap(weight=tf.constant([-1]), other=tf.constant([-1.0])))
