"""The context of a forward pass."""

from __future__ import annotations

import functools
import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.layers.core import forward_context
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.core.random_streams import path_hash
from tests.support.errors import fails


def test_the_innermost_open_context_is_current() -> None:
    assert not forward_context.current_context().do_eval
    with ForwardContext(do_eval=True) as outer:
        with ForwardContext() as inner:
            assert forward_context.current_context() is inner
        with outer:
            assert forward_context.current_context() is outer
        assert forward_context.current_context() is outer
    with pytest.raises(KeyError), outer:
        raise KeyError
    assert forward_context.current_context().step is None
    assert not forward_context.current_context().do_eval


def test_threads_have_contexts_of_their_own() -> None:
    seen = []
    with ForwardContext(do_eval=True):
        thread = threading.Thread(
            target=lambda: seen.append(forward_context.current_context().do_eval)
        )
        thread.start()
        thread.join()
    assert seen == [False]


def test_alike_layers_share_a_trace_and_have_streams_of_their_own() -> None:
    position: dict[str, Any] = {"step": 3, "first_example": 0}

    @tf.function(autograph=False)
    def draw(root_hash: tf.Tensor) -> tf.Tensor:
        context = ForwardContext(root_path="net/a", root_hash=root_hash, **position)
        return context.uniform("net/a/dropout", 7, [2, 5])

    for path in ("net/a", "net/b"):
        expected = ForwardContext(**position).uniform(f"{path}/dropout", 7, [2, 5])
        actual = draw(tf.constant(path_hash(path), tf.uint64))
        np.testing.assert_array_equal(actual, expected)
    assert draw.experimental_get_tracing_count() == 1


def test_accumulated_paths_are_relative_to_the_layer_that_runs() -> None:
    context = ForwardContext(root_path="model/first")
    context.accumulate("model/first/norm/sum", tf.ones([2]))
    assert list(context.accumulated) == ["norm/sum"]
    with fails(path="model/first/norm/sum", got="two"):
        context.accumulate("model/first/norm/sum", tf.ones([2]))
    for stranger in ("model/firsts/norm", "model"):
        with fails(path=stranger):
            context.relative_path(stranger)


def test_a_metric_of_weight_0_counts_as_nothing() -> None:
    context = ForwardContext()
    context.add_metric("accuracy", tf.constant(float("nan")), tf.constant(0.0))
    context.add_metric("accuracy", tf.constant(3.0), tf.constant(2.0))
    assert [float(x) for x in context.metrics["accuracy"]] == [6.0, 2.0]


def test_padding_rows_count_as_nothing_in_a_tensor_of_any_number_of_rows() -> None:
    @tf.function(input_signature=[tf.TensorSpec([None, 2])])
    def weights(x: tf.Tensor) -> tf.Tensor | None:
        return ForwardContext(num_examples=tf.constant(1)).row_weights(x)

    np.testing.assert_array_equal(weights(tf.ones([3, 2])), [[1], [0], [0]])


def test_merged_rows_have_the_numbers_of_their_examples() -> None:
    """A micro-batch's rows must not take numbers of later examples."""
    whole = functools.partial(ForwardContext, step=3, first_example=0, num_rows=6)
    half = ForwardContext(step=3, first_example=3, num_rows=3)
    apart = whole().uniform("a/b", 0, [6, 5, 2])
    merged = whole().uniform("a/b", 0, [30, 2])
    np.testing.assert_array_equal(merged, tf.reshape(apart, [30, 2]))
    np.testing.assert_array_equal(half.uniform("a/b", 0, [15, 2]), merged[15:])
    with fails(path="a/b", got="shape (8, 2)"):
        half.uniform("a/b", 0, [8, 2])
    once = whole().uniform("a/b", 0, [6, 2], below=0.5)
    repeated = whole().uniform("a/b", 0, [30, 2], below=0.5, per_example=True)
    np.testing.assert_array_equal(repeated, tf.repeat(once, 5, 0))


def _draw() -> tf.Tensor:
    return forward_context.current_context().uniform("a/b", 0, [2, 3])


def _branches(*functions: Any) -> tf.Tensor:
    return tf.switch_case(tf.constant(0), functions)


def _in_context() -> tf.Tensor:
    with ForwardContext(step=3, first_example=0):
        return _draw()


_ZEROS = functools.partial(tf.zeros, [2, 3])


@pytest.mark.parametrize(
    "run",
    [
        lambda: tf.map_fn(lambda x: x * _draw(), tf.ones([4, 1, 1])),
        lambda: tf.while_loop(lambda x: _draw()[0, 0] < 0.5, lambda x: [x], [0]),
        lambda: _branches(_draw, _draw),
        lambda: _branches(_draw, _ZEROS) + _draw(),
        lambda: _branches(lambda: _branches(_draw, _ZEROS) + _draw(), _ZEROS),
    ],
)
def test_a_graph_cannot_decide_how_often_a_layer_draws(run: Any) -> None:
    """A graph draws once for all iterations, and in all branches, unlike eager code."""
    with ForwardContext(step=3, first_example=0), fails(path="a/b"):
        tf.function(run, autograph=False)()


@pytest.mark.parametrize(
    "run",
    [
        lambda: _draw() + _draw(),
        lambda: _branches(lambda: _draw() + _draw(), _ZEROS),
        lambda: _draw() + _branches(_draw, _ZEROS),
        lambda: _branches(lambda: _draw() + _branches(_draw, _ZEROS), _ZEROS),
        lambda: tf.map_fn(lambda x: x * _in_context(), tf.ones([4, 1, 1])),
    ],
)
def test_draws_in_one_branch_are_those_of_eager_code(run: Any) -> None:
    results = []
    for function in (run, tf.function(run, autograph=False)):
        with ForwardContext(step=3, first_example=0):
            results.append(function())
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("known", [{"step": 1}, {"first_example": 1}])
def test_random_numbers_need_a_step_and_an_example(known: dict[str, Any]) -> None:
    with fails(path="a/b") as info:
        ForwardContext(**known).uniform("a/b", 0, [2])
    assert "step=" in info.value.hint


@pytest.mark.parametrize("shape", [[], [None, 3], None])
def test_random_numbers_need_a_static_shape(shape: list[int | None] | None) -> None:
    context = ForwardContext(step=1, first_example=0)
    with fails(path="a/b", got=str(tf.TensorShape(shape))):
        context.uniform("a/b", 0, tf.TensorShape(shape))
