"""Functions of users' layers on `[B, 4]` examples, by whether they mix them.

Each is a function of a layer and its inputs. The layer has `gate`, a weight of 0,
`seeds`, a SeedGenerator, and `dropout`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras import layers, ops


class Own(layers.Layer):
    """A layer that calls a function of this module."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__(name="own")
        self._function = function
        self.gate = self.add_weight((), initializer="zeros", trainable=False)
        self.seeds = keras.random.SeedGenerator(1)
        self.dropout = layers.Dropout(0.5)

    def call(self, x: Any) -> Any:
        return self._function(self, x)


def centered(x: Any) -> Any:
    return x - ops.mean(x, axis=0)


def _number(x: Any) -> Any:
    return ops.cast(ops.shape(x)[0], "float32")


def _adds(loss: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def add(layer: Any, x: Any) -> Any:
        layer.add_loss(loss(layer, x))
        return x

    return add


def _with_clipped_gradient(x: Any, limit: float) -> Any:
    @tf.custom_gradient
    def identity(x: Any) -> Any:
        return tf.identity(x), lambda dy: tf.clip_by_norm(dy, limit)

    return identity(x)


def _center_groups(x: Any) -> Any:
    groups = ops.reshape(x, (4, -1, 4))
    return ops.reshape(groups - ops.mean(groups, axis=0), (-1, 4))


def _attends_to_examples(x: Any) -> Any:
    return ops.matmul(ops.softmax(ops.matmul(x, ops.transpose(x))), x)


def _choose(condition: Any, x: Any) -> Any:
    return ops.where(condition, x, 2.0 * x)


def _sum_of_steps(x: Any) -> Any:
    def step(carry: Any, column: Any) -> Any:
        return carry + column, carry + column

    return ops.transpose(ops.scan(step, ops.zeros_like(x[:, 0]), ops.transpose(x))[1])


def _of_largest(x: Any) -> Any:
    places = tf.stack([tf.range(tf.shape(x)[0]), tf.argmax(x, 1, tf.int32)], 1)
    return tf.gather_nd(x, places)[:, None] * x


MIXING = {
    "groups by stride": lambda layer, x: _center_groups(x),
    "a sum as a loss": _adds(lambda layer, x: layer.gate * ops.sum(ops.square(x))),
    "a hinge": _adds(lambda layer, x: ops.sum(ops.relu(ops.abs(x) - 10))),
    "a maximum": _adds(lambda layer, x: ops.max(ops.relu(ops.abs(x) - 10))),
    "a mean of some": _adds(
        lambda layer, x: tf.reduce_mean(tf.boolean_mask(x[:, 0], x[:, 1] > -9))
    ),
    "a rounded mean": _adds(
        lambda layer, x: ops.cast(ops.cast(1e-3 * ops.mean(x), "int32"), "float32")
    ),
    "a rotation": lambda layer, x: ops.roll(x, 8, axis=0),
    "a rotation by the number": lambda layer, x: tf.roll(x, tf.shape(x)[0] // 8, 0),
    "a small rotation": lambda layer, x: x + 5e-4 * ops.roll(x, 1, axis=0),
    "pairs": lambda layer, x: ops.repeat(x[::2], 2, axis=0)[: ops.shape(x)[0]],
    "the first eight": lambda layer, x: ops.concatenate([x[:8], 0 * x[8:]], 0),
    "a gate": lambda layer, x: x + layer.gate * _attends_to_examples(x),
    "the number of values": lambda layer, x: (
        x * tf.cast(tf.reduce_prod(tf.shape(x)[:2]), x.dtype)
    ),
    "the number": lambda layer, x: x * ops.maximum(1.0, _number(x) / 16),
    "a number of ones": lambda layer, x: _choose(
        ops.sum(ops.ones((ops.shape(x)[0],))) > 99, x
    ),
    "a size backwards": lambda layer, x: _choose(tf.shape(x)[1::-1][1] > 99, x),
    "a branch": lambda layer, x: ops.cond(
        layer.gate > 100.0, lambda: centered(x), lambda: x
    ),
    "a gradient in a branch": lambda layer, x: ops.cond(
        layer.gate < 100.0, lambda: _with_clipped_gradient(x, 0.1), lambda: x
    ),
    "one of several branches": lambda layer, x: ops.switch(
        ops.cast(layer.gate, "int32"), [lambda x: x, centered], x
    ),
    "a loop's condition": lambda layer, x: tf.while_loop(
        lambda y: tf.reduce_mean(y) > 1e9, lambda y: (y * 0.5,), [x]
    )[0],
    "a loop": lambda layer, x: tf.while_loop(
        lambda i, y: i < layer.gate, lambda i, y: (i + 1.0, centered(y)), [0.0, x]
    )[1],
    "a large clipped gradient": lambda layer, x: _with_clipped_gradient(x, 10.0),
    "a function": lambda layer, x: tf.function(centered)(x),
    "a compiled function": lambda layer, x: tf.function(
        lambda x: _choose(ops.mean(x) > -9, x), jit_compile=True
    )(x),
    "a shuffle": lambda layer, x: keras.random.shuffle(x, seed=layer.seeds),
    "a late shift": lambda layer, x: ops.where(
        layer.gate > 3, ops.concatenate([x[1:], x[:1]], 0), x
    ),
    "the same noise": lambda layer, x: ops.where(
        layer.gate > 3, x + tf.random.stateless_normal(tf.shape(x), seed=[1, 2]), x
    ),
    "a rare reversal": lambda layer, x: ops.where(
        keras.random.uniform((), seed=layer.seeds) < 0.02, ops.flip(x, axis=0), x
    ),
}

SEPARATE = {
    "dropout within": lambda layer, x: x + layer.dropout(x),
    "noise": lambda layer, x: x + keras.random.normal(ops.shape(x), seed=layer.seeds),
    "a size": lambda layer, x: (
        x * tf.cast(tf.range(tf.unstack(tf.shape(x))[1]) > 1, tf.float32)
    ),
    "a size of one's own": lambda layer, x: ops.cond(
        ops.shape(ops.reshape(x, (ops.shape(x)[0], -1, 2)))[1] > 2,
        lambda: x,
        lambda: 2.0 * x,
    ),
    "a mean by ones": _adds(
        lambda layer, x: tf.reduce_sum(x) / tf.reduce_sum(tf.ones_like(x))
    ),
    "a checked mean": _adds(
        lambda layer, x: tf.debugging.check_numerics(tf.reduce_mean(x), "x")
    ),
    "a mean at times": _adds(
        lambda layer, x: ops.where(layer.gate > 0, ops.mean(x), 0.0)
    ),
    "a weighted mean": _adds(
        lambda layer, x: tf.einsum("i,->i", tf.ones(2), tf.reduce_mean(x))[0]
    ),
    "one by one": lambda layer, x: tf.map_fn(lambda row: row * tf.reduce_max(row), x),
    "the largest": lambda layer, x: _of_largest(x),
    "its order": lambda layer, x: ops.take_along_axis(x, ops.argsort(x, axis=1), 1),
    "its places": lambda layer, x: ops.take(x, ops.arange(ops.shape(x)[0]), axis=0),
    "its moments": lambda layer, x: (
        (x - ops.mean(x, 1, keepdims=True)) / (ops.std(x, 1, keepdims=True) + 1e-3)
    ),
    "a scan": lambda layer, x: _sum_of_steps(x),
    "a loop of steps": lambda layer, x: ops.fori_loop(0, 3, lambda i, y: y + x, x),
    "branches": lambda layer, x: ops.switch(
        ops.cast(layer.gate, "int32"), [lambda x: x, lambda x: 2.0 * x], x
    ),
    "missing numbers": lambda layer, x: ops.where(ops.isnan(x), 0.0, x),
    "attention": lambda layer, x: ops.reshape(
        ops.dot_product_attention(*[ops.reshape(x, (-1, 2, 1, 2))] * 3), (-1, 4)
    ),
    "its number of features": lambda layer, x: (
        x * tf.cast(tf.reduce_prod(tf.shape(x)[1:]), x.dtype)
    ),
    "zeros": lambda layer, x: ops.concatenate([x, ops.zeros((ops.shape(x)[0], 2))], 1)[
        :, :4
    ],
    "frequencies": lambda layer, x: tf.math.real(
        tf.signal.fft(tf.cast(x, tf.complex64))
    ),
    "an image": lambda layer, x: ops.reshape(
        ops.image.resize(ops.reshape(x, (-1, 2, 2, 1)), (4, 1)), (-1, 4)
    ),
}
