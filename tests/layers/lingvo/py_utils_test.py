"""The functions of py_utils have Lingvo's meaning, eagerly and in graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import lingvo_pipe as lp
from lingvo_pipe import py_utils
from lingvo_pipe.core.errors import UserAttributeError
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.tshape import Shape
from tests.support.errors import fails

InvalidArgument = tf.errors.InvalidArgumentError


def _traced(fn: Callable, x: Any, shape: Any) -> Any:
    """Returns `fn(x)`, traced where only `shape` of `x` is known."""
    x = tf.convert_to_tensor(x)
    spec = tf.TensorSpec(shape, x.dtype)
    return tf.function(fn, [spec], autograph=False)(x)


# ---- Shapes.


def test_a_static_shape_is_a_list_of_ints() -> None:
    x = np.zeros([2, 3, 4])
    assert py_utils.GetShape(x) == py_utils.GetShape(x, ndims=5) == [2, 3, 4]
    assert py_utils.GetShape(x, ndims=2) == [2, 3]
    sizes = py_utils.GetShape(x, optimize_for_reshape=True)
    assert [type(size) for size in sizes] == [int] * 3


def test_unknown_dimensions_are_tensors() -> None:
    def fn(x: tf.Tensor) -> tf.Tensor:
        first, second, third = py_utils.GetShape(x)
        assert second == 3
        assert tf.is_tensor(first)
        assert tf.is_tensor(third)
        assert py_utils.GetShape(x, 2)[1:] == [3]
        sizes = py_utils.GetShape(x, optimize_for_reshape=True)
        assert sizes[:2] == [-1, 3]
        return tf.stack([first, second, third]), tf.reshape(tf.identity(x), sizes)

    shape, same = _traced(fn, tf.ones([2, 3, 4]), [None, 3, None])
    assert [*shape.numpy()] == [2, 3, 4]
    assert same.shape == [2, 3, 4]


def test_an_unknown_rank_gives_tensors() -> None:
    def fn(x: tf.Tensor) -> Any:
        return py_utils.GetRank(x), py_utils.GetShape(x), py_utils.GetShape(x, 2)

    rank, shape, first_two = _traced(fn, tf.ones([2, 3, 4]), None)
    assert (int(rank), [*shape.numpy()]) == (3, [2, 3, 4])
    assert [*map(int, first_two)] == [2, 3]
    assert py_utils.GetRank([[1, 2]]) == 2


@pytest.mark.parametrize(
    ("expected_shape", "ndims"),
    [
        ([2, 3], None),
        ([2, -1], None),
        ((-1, -1), None),
        ([2], 1),
        (tf.TensorShape([2, None]), None),
    ],
)
@pytest.mark.parametrize("known", [[2, 3], [None, 3], [None, None], None])
def test_a_shape_that_matches(expected_shape: Any, ndims: int, known: Any) -> None:
    found = _traced(
        lambda x: py_utils.HasShape(x, expected_shape, ndims), tf.ones([2, 3]), known
    )
    assert found.shape == [2, 3]


@pytest.mark.parametrize(
    ("expected_shape", "ndims"),
    [([2, 4], None), ([2], None), ([2, 3, 1], None), ([3], 1), ([2, 3, -1], 3)],
)
def test_a_shape_that_differs(expected_shape: list[int], ndims: int | None) -> None:
    """The graph is refused if the shape is known; if not, the operation fails."""
    x = tf.ones([2, 3])

    def fn(x: tf.Tensor) -> tf.Tensor:
        return py_utils.HasShape(x, expected_shape, ndims)

    with fails(path="Shape of a tensor"):
        fn(x)
    with pytest.raises((InvalidArgument, ValueError)):
        _traced(fn, x, [None, None])


def test_an_expected_shape_may_hold_tensors() -> None:
    def fn(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        first = py_utils.HasShape(x, [tf.shape(y)[0], 3])
        return py_utils.HasShape(first, tf.shape(y))

    spec = tf.TensorSpec([None, None])
    traced = tf.function(fn, [spec, spec], autograph=False)
    assert traced(tf.ones([2, 3]), tf.ones([2, 3])).shape == [2, 3]
    with pytest.raises(InvalidArgument):
        traced(tf.ones([2, 3]), tf.ones([4, 3]))


def test_ranks_are_checked() -> None:
    x = tf.ones([2, 3])
    assert py_utils.HasRank(x, 2) is x
    assert py_utils.HasRank(np.ones([2, 3]), 2).shape == x.shape
    with fails(expected="rank 3"):
        py_utils.HasRank(x, 3)
    assert _traced(lambda x: py_utils.HasRank(x, 2), x, None).shape == [2, 3]
    with pytest.raises(InvalidArgument):
        _traced(lambda x: py_utils.HasRank(x, 3), x, None)


def test_shapes_of_fprop_meta_are_checked() -> None:
    py_utils.CheckShapes((Shape([2, 3]), NestedMap(a=Shape([]), b=NestedMap())))
    wrongs: list[Any] = [None, [Shape([2])], ((2, 3),), (NestedMap(a=3),), (None,)]
    for wrong in wrongs:
        with fails(got=wrong):
            py_utils.CheckShapes(wrong)


# ---- Checks.


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (py_utils.assert_less_equal, (2, 2), (3, 2)),
        (py_utils.assert_shape_match, ([2], [-1]), ([-1], [2])),
    ],
)
def test_a_dependency_stops_the_computation(
    check: Callable, good: tuple, bad: tuple
) -> None:
    def fn(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        return py_utils.with_dependencies([check(a, b)], tf.constant(7.0))

    for run in (fn, tf.function(fn, autograph=False)):
        assert run(*map(tf.constant, good)).numpy() == 7.0
        with pytest.raises((InvalidArgument, ValueError)):
            run(*map(tf.constant, bad))


def test_numbers_are_checked_to_be_finite() -> None:
    good = [tf.constant(1.0), (tf.constant(2),)]
    assert py_utils.CheckNumerics(good, "good")[1][0].numpy() == 2
    with pytest.raises(InvalidArgument, match="mean"):
        py_utils.CheckNumerics(tf.constant(np.inf), "mean")


# ---- Paddings.

X = np.arange(12.0, dtype=np.float32).reshape(2, 3, 2)
PADDINGS = np.array([[0, 0, 1], [0, 1, 1]], np.float32)


@pytest.mark.parametrize("use_select", [True, False])
@pytest.mark.parametrize("padded", [None, 5.0 * np.ones_like(X)])
@pytest.mark.parametrize("dtype", [tf.float32, tf.bool])
def test_padding_replaces_values(use_select: bool, padded: Any, dtype: Any) -> None:
    padding = tf.cast(PADDINGS[..., np.newaxis], dtype)
    found = py_utils.ApplyPadding(padding, tf.constant(X), padded, use_select)
    other = 0.0 if padded is None else 5.0
    assert np.array_equal(found, np.where(PADDINGS[..., np.newaxis] == 1, other, X))


def test_padding_replaces_what_is_not_finite() -> None:
    bad = tf.constant([1.0, np.nan, np.inf])
    assert [*py_utils.ApplyPadding(tf.constant([0.0, 1, 1]), bad).numpy()] == [1, 0, 0]
    with pytest.raises(InvalidArgument, match=r"\b0\.5\b"):
        py_utils.ApplyPadding(tf.constant([0.5, 1, 1]), bad)


def test_padding_must_not_widen() -> None:
    x = tf.ones([1, 2])
    with pytest.raises((InvalidArgument, ValueError), match="shape"):
        py_utils.ApplyPadding(tf.zeros([3, 2]), x)
    wide = py_utils.ApplyPadding(tf.zeros([3, 2]), x, ensure_shape=False)
    assert wide.shape == [3, 2]


@pytest.mark.parametrize(
    ("paddings", "lengths"),
    [
        ([[0, 0, 1], [0, 1, 1]], [2, 1]),
        ([[0, 0, 0], [1, 1, 1]], [3, 0]),
        ([[1, 0, 1], [1, 1, 0]], [2, 3]),
        ([[0, 1, 0]], [3]),
        (np.zeros([2, 0]), [0, 0]),
    ],
)
def test_lengths_leave_out_trailing_padding(paddings: Any, lengths: list[int]) -> None:
    for dtype in (tf.float32, tf.int32):
        found = py_utils.LengthsFromPaddings(tf.constant(paddings, dtype), tf.int64)
        assert (found.dtype, [*found.numpy()]) == (tf.int64, lengths)


def test_paddings_have_the_lengths() -> None:
    lengths = tf.constant([2, 0, 3])
    paddings = py_utils.PaddingsFromLengths(lengths, 4)
    assert np.array_equal(paddings, [[0, 0, 1, 1], [1] * 4, [0, 0, 0, 1]])
    assert np.array_equal(py_utils.LengthsFromPaddings(paddings), lengths)
    assert py_utils.PaddingsFromLengths(lengths).shape == [3, 3]
    with pytest.raises(InvalidArgument):
        py_utils.PaddingsFromLengths(lengths, 2)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("known", [X.shape, [None, None, None]])
def test_an_axis_is_padded(axis: int, known: Any) -> None:
    shape = list(X.shape)
    shape[axis] = 5
    found = _traced(
        lambda x: py_utils.PadSequenceDimension(x, 5, 9.0, shape, axis), X, known
    )
    expected = np.full(shape, 9.0)
    expected[tuple(map(slice, X.shape))] = X
    assert np.array_equal(found, expected)


# ---- Computation.


def test_matrices_are_multiplied() -> None:
    x, y = tf.ones([2, 3]), tf.ones([4, 3])
    assert np.array_equal(py_utils.Matmul(x, y, transpose_b=True), 3 * np.ones([2, 4]))
    with fails(expected="rank 2"):
        py_utils.Matmul(tf.ones([1, 2, 3]), y)


def test_the_last_dimension_is_projected() -> None:
    weight = tf.constant([[1.0, 2, 3], [4, 5, 6]])
    for x in (X, X[0], X[0, 0]):
        found = py_utils.ProjectLastDim(tf.constant(x), weight, 2, 3)
        np.testing.assert_allclose(found, x @ weight.numpy())
    with fails(expected="[3, 2]"):
        py_utils.ProjectLastDim(tf.constant(X), weight, 3, 2)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_an_extra_logit_takes_its_share(axis: int) -> None:
    """It acts like one beside the others, however large they are."""
    logits = np.concatenate([X[0], 1000.0 + X[0]]).astype(np.float32)
    extra = np.full_like(np.take(logits, [0], axis), 1001.0)
    beside = tf.nn.softmax(np.concatenate([logits, extra], axis), axis)
    found = py_utils.Softmax(logits, axis, 1001.0)
    expected = np.take(beside, range(logits.shape[axis]), axis)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert np.array_equal(
        py_utils.Softmax(logits, axis), tf.nn.softmax(logits, axis).numpy()
    )


def test_dtypes_and_the_step() -> None:
    p = BaseLayer.Params().Set(dtype=tf.float32)
    assert py_utils.FPropDtype(p) == tf.float32
    assert py_utils.FPropDtype(p.Set(fprop_dtype=tf.bfloat16)) == tf.bfloat16
    with ForwardContext(step=tf.constant(3, tf.int64)):
        assert int(py_utils.GetGlobalStep()) == 3
    with fails(path="GetGlobalStep"):
        py_utils.GetGlobalStep()


# ---- Names.


def test_names_of_others_are_theirs() -> None:
    for name in ("NestedMap", "WeightInit", "WeightParams", "Params"):
        assert getattr(py_utils, name) is getattr(lp, name)
    for name in ("equal", "greater", "greater_equal", "less", "less_equal"):
        theirs = getattr(tf.debugging, f"assert_{name}")
        assert getattr(py_utils, f"assert_{name}") is theirs
    nest = [py_utils.Flatten, py_utils.Pack, py_utils.Transform]
    assert nest == [tf.nest.flatten, tf.nest.pack_sequence_as, tf.nest.map_structure]


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("DeterministicDropout", "DropoutLayer"),
        ("GenerateStepSeedPair", "uniform"),
        ("CallDefun", "custom_gradient"),
        ("GetShpae", "'GetShape'"),
    ],
)
def test_the_error_names_what_to_use_instead(name: str, instead: str) -> None:
    with fails(UserAttributeError, got=name) as info:
        getattr(py_utils, name)
    assert instead in info.value.hint


def test_structures_are_compatible_if_only_leaves_differ() -> None:
    a, b = NestedMap(a=1, b=[2, {"c": 3}]), NestedMap(a="x", b=[None, NestedMap(c=0)])
    assert py_utils.IsCompatible(a, b)
    for other in (NestedMap(a=1), NestedMap(a=1, b=[2]), NestedMap(a=1, b=[2, {}])):
        assert not py_utils.IsCompatible(a, other)
