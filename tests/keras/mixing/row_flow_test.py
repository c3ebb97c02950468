"""Sizes that depend on the number of examples are told from other sizes."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from lingvo_pipe.keras.mixing.row_flow import Flow, flows, has_custom_gradient


def test_sizes_are_counts_only_where_they_may_be_of_examples() -> None:
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, 3, 4])
        shape = tf.shape(x)
        fixed = [shape[1:], shape[2], shape[-1], shape[1:2], shape[-2:]]
        counted = [
            shape,
            shape[0],
            shape[:1],
            shape[:],
            shape[:2],
            shape[-3],
            shape[::2],
        ]
    flow_of = flows(graph, {x.ref(): Flow.ROWS})
    assert [flow_of[size.ref()] for size in fixed] == [Flow.FREE] * len(fixed)
    assert [flow_of[size.ref()] for size in counted] == [Flow.COUNT] * len(counted)


def test_only_functions_with_custom_gradients_are_told() -> None:
    @tf.custom_gradient
    def doubled(x: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return 2 * x, lambda gradient: gradient

    def several(x: tf.Tensor) -> list[tf.Tensor]:
        return tf.identity_n([x, x])

    calls = (
        doubled,
        tf.function(doubled),
        several,
        tf.function(several),
        tf.stop_gradient,
    )
    has_one = []
    for call in calls:
        with tf.Graph().as_default() as graph:
            call(tf.ones([2]))
        has_one.append(has_custom_gradient(graph))
    assert has_one == [True, True, False, False, False]
