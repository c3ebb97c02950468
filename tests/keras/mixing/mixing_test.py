"""A user's layers and losses that mix examples are noticed, and no others."""

from __future__ import annotations

from typing import Any

import keras
import pytest
import tensorflow as tf
from keras import layers

from lingvo_pipe.keras.mixing import mixing
from lingvo_pipe.keras.mixing.mixing import mixing_layers
from lingvo_pipe.keras.pipelined_model import PipelinedModel
from tests.keras.example_models import MODELS
from tests.keras.mixing.own_functions import MIXING, SEPARATE, Own, centered
from tests.keras.toy_models import Sampling
from tests.support.cases import exhaustive


class _Fails(layers.Layer):
    def call(self, x: Any) -> Any:
        if not isinstance(x, keras.KerasTensor) and tf.executing_eagerly():
            raise ValueError("no such values")
        return x


class _Average(layers.Layer):
    """Stores a number of the mini-batch, without using it."""

    def __init__(self, number: Any) -> None:
        super().__init__(name="own")
        self._number = number
        self.average = self.add_weight(shape=(), trainable=False, name="average")

    def call(self, x: Any) -> Any:
        self.average.assign(0.9 * self.average + 0.1 * self._number(x))
        return x * 2.0


class _Balanced(layers.Layer):
    """Adds a loss by how evenly the mini-batch is spread, as mixtures of experts do."""

    def __init__(self, loss: Any, name: str = "own") -> None:
        super().__init__(name=name)
        self._loss = loss

    def call(self, x: Any) -> Any:
        self.add_loss(self._loss(keras.ops.softmax(x)))
        return x


def _load(x: Any) -> Any:
    return keras.ops.sum(keras.ops.square(keras.ops.mean(x, axis=0)))


class _InEvaluation(layers.Layer):
    def call(self, x: Any, training: bool | None = None) -> Any:
        return x if training else x - keras.ops.mean(x, axis=0)


def _of_joint_gradient(x: Any) -> Any:
    @tf.custom_gradient
    def identity(x: Any) -> Any:
        return tf.identity(x), lambda dy: dy / (tf.norm(dy) + 1e-6)

    return identity(x)


class _Clipped(layers.Dense):
    """Clips the gradient of its kernel."""

    def call(self, x: Any) -> Any:
        @tf.custom_gradient
        def product(x: Any, w: Any) -> Any:
            def gradient(dy: Any) -> Any:
                dw = tf.matmul(x, dy, transpose_a=True)
                return tf.matmul(dy, w, transpose_b=True), tf.clip_by_norm(dw, 0.1)

            return tf.matmul(x, w), gradient

        return product(x, tf.convert_to_tensor(self.kernel))


def _by_a_mean(x: Any) -> Any:
    return keras.ops.where(keras.ops.mean(x) > -9, x, 0.5 * x)


def _by_the_number(x: Any) -> Any:
    return keras.ops.cond(keras.ops.shape(x)[0] > 9, lambda: x * 0.5, lambda: x)


def _of_probabilities(x: Any) -> Any:
    with tf.control_dependencies([tf.debugging.assert_non_negative(x)]):
        return tf.sqrt(x)


def _scaled(x: Any) -> Any:
    return x / tf.sqrt(tf.cast(tf.shape(x)[-1], x.dtype))


class _Recurrent(layers.Layer):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.lstm = layers.LSTM(2)

    def call(self, x: Any) -> Any:
        return self.lstm(keras.ops.reshape(x, (keras.ops.shape(x)[0], -1, 1)))


class _Attends(layers.Layer):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.attention = layers.MultiHeadAttention(2, 3)
        self.norm = layers.LayerNormalization()

    def call(self, x: Any) -> Any:
        x = keras.ops.expand_dims(x, -1)
        y = self.norm(self.attention(x, x, use_causal_mask=True))
        return keras.ops.max(
            y * keras.ops.cast(keras.ops.argmax(y, 1), y.dtype)[:, None], 1
        )


def _own(function: Any) -> Any:
    return lambda: layers.Lambda(function, name="own")


_OWN = {
    "a choice by a mean": (_own(_by_a_mean), True),
    "a choice by the number of examples": (_own(_by_the_number), True),
    "a choice in a function": (_own(tf.function(_by_a_mean)), True),
    "a loss by a choice": (
        lambda: _Balanced(lambda x: keras.ops.mean(_by_a_mean(x))),
        True,
    ),
    "a stored choice": (
        lambda: _Average(lambda x: keras.ops.cast(keras.ops.max(x) > 9, "float32")),
        True,
    ),
    "a mean in evaluation": (lambda: _InEvaluation(name="own"), True),
    "a joint gradient": (_own(_of_joint_gradient), True),
    "a clipped gradient of a kernel": (lambda: _Clipped(3, name="own"), True),
    "a gradient of each example": (_own(tf.nn.silu), False),
    "a scale by a known size": (_own(_scaled), False),
    "a norm of each example": (_own(lambda x: tf.math.l2_normalize(x, -1)), False),
    "a mean by hand": (
        lambda: _Balanced(
            lambda x: tf.reduce_sum(x) / tf.cast(tf.shape(x)[0], tf.float32)
        ),
        False,
    ),
    "a recurrence": (lambda: _Recurrent(name="own"), False),
    "attention": (lambda: _Attends(name="own"), False),
    "a mean": (lambda: layers.Lambda(centered, name="own"), True),
    "a reversal": (lambda: layers.Lambda(lambda x: x[::-1], name="own"), True),
    "a shuffle": (lambda: layers.Lambda(tf.random.shuffle, name="own"), True),
    "the last axis": (lambda: layers.Lambda(lambda x: x[:, ::-1], name="own"), False),
    "numbers": (lambda: Sampling(name="own"), False),
    "a mean loss": (lambda: _Balanced(keras.ops.mean), False),
    "an exponential of a mean loss": (
        lambda: _Balanced(lambda x: keras.ops.exp(keras.ops.mean(x))),
        True,
    ),
    "a sum of losses": (lambda: _Balanced(keras.ops.sum), True),
    "load balancing": (lambda: _Balanced(_load), True),
    "a loss of each example": (lambda: _Balanced(lambda x: x[:, 0]), True),
    # A balance with this coefficient was taken for a mean.
    "little of it": (lambda: _Balanced(lambda x: 1e-3 * _load(x)), True),
    "a stored mean": (lambda: _Average(keras.ops.mean), False),
    "a stored maximum": (lambda: _Average(keras.ops.max), True),
    "values that it takes": (_own(_of_probabilities), False),
    "values that it takes, mixed": (_own(lambda x: _of_probabilities(x[::-1])), True),
    "failure": (lambda: _Fails(name="own"), True),
}


@pytest.mark.parametrize("name", _OWN)
def test_mixing_is_noticed(name: str) -> None:
    make, mixes = _OWN[name]
    x = keras.Input((4,))
    assert mixing_layers(keras.Model(x, make()(x))) == ["own"] * mixes


@pytest.mark.parametrize("name", [*MIXING, *SEPARATE])
def test_a_function_of_a_layer(name: str) -> None:
    """Each of them was wrong once: silent, or a false warning."""
    layer = Own({**MIXING, **SEPARATE}[name])
    x = keras.Input((4,))
    assert mixing_layers(keras.Model(x, layer(x))) == ["own"] * (name in MIXING)


class _Cell(layers.Layer):
    state_size = output_size = 3

    def call(self, x: Any, states: Any, training: bool = False) -> Any:
        y = states[0] + centered(x)
        return y, [y]


@pytest.mark.parametrize(
    "make",
    [
        lambda: layers.Dense(3, activation=centered),
        lambda: layers.Activation(centered),
        lambda: layers.LSTM(3, activation=centered),
        lambda: layers.RNN(_Cell()),
        lambda: layers.TimeDistributed(layers.Lambda(centered)),
        lambda: layers.Dense(3, activity_regularizer=lambda y: keras.ops.max(y)),
        lambda: layers.Softmax(axis=-3),
    ],
)
def test_a_layer_of_keras_may_have_functions_of_users(make: Any) -> None:
    """Only layers of users' own classes were tried."""
    x = keras.Input((4, 3))
    layer = make()
    assert mixing_layers(keras.Model(x, layer(x))) == [layer.name]


@pytest.mark.parametrize(
    "make",
    [
        lambda: layers.Dense(3, activation="relu", kernel_regularizer="l2"),
        lambda: layers.Bidirectional(layers.GRU(3)),
        lambda: layers.RNN(layers.LSTMCell(2)),
        lambda: layers.TimeDistributed(layers.Dense(2)),
        lambda: layers.Softmax(axis=-1),
    ],
)
def test_a_layer_of_keras_is_not_tried(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = keras.Input((4, 3))
    model = keras.Model(x, make()(x))
    monkeypatch.setattr(mixing, "graph_of_call", None)
    assert mixing_layers(model) == []


def test_examples_may_be_single_numbers() -> None:
    """Each layer of them was named."""
    x = keras.Input(())
    wide = layers.Lambda(lambda x: keras.ops.sin(x)[:, None])(x)
    assert mixing_layers(keras.Model(x, layers.Dense(2)(wide))) == []


class _Masks(layers.Layer):
    supports_masking = True

    def call(self, x: Any) -> Any:
        return x

    def compute_mask(self, x: Any, previous: Any = None) -> Any:
        total = keras.ops.sum(x, -1)
        return total > keras.ops.mean(total)


def test_a_mask_may_mix_examples() -> None:
    x = keras.Input((4, 3))
    assert mixing_layers(keras.Model(x, _Masks(name="own")(x))) == ["own"]


def test_an_output_without_examples_mixes_them() -> None:
    x = keras.Input((4,))
    largest = layers.Lambda(lambda z: keras.ops.cast(keras.ops.max(z) > 9, "float32"))
    assert mixing_layers(keras.Model(x, x * largest(x))) == [largest.name]


class _Normalized(layers.Layer):
    def __init__(self) -> None:
        super().__init__(name="own")
        self.norm = layers.BatchNormalization()

    def call(self, x: Any, training: bool = False) -> Any:
        return centered(self.norm(x, training=training))


def test_a_layer_with_batch_normalization_is_tried_in_evaluation() -> None:
    x = keras.Input((4,))
    assert mixing_layers(keras.Model(x, _Normalized()(x))) == ["own"]


def test_one_layer_of_each_class_of_keras_hub_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of its layers went unnoticed, such as load balancing."""
    monkeypatch.setattr(_Balanced, "__module__", "keras_hub.src.layers")
    x = keras.Input((5,))
    made = layers.Dense(4)(_Balanced(_load, "first")(x))
    model = keras.Model(x, _Balanced(_load, "second")(made))
    assert mixing_layers(model) == ["first", "second"]


def test_batch_normalization_is_reported_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    norms = [layers.BatchNormalization(name=f"norm{i}") for i in range(6)]
    norms[0].trainable = False
    model = keras.Sequential([keras.Input((5,)), layers.Dense(3), *norms])
    PipelinedModel(model).compile(loss="mse")
    assert not caplog.records
    PipelinedModel(model, num_micro_batches=2)  # It is compiled.
    assert "'norm1', 'norm2', 'norm3' and 2 more" in caplog.text
    assert len(caplog.records) == 1


@pytest.mark.parametrize("name", ["vision_transformer", *map(exhaustive, MODELS)])
def test_example_models_mix_nothing(name: str) -> None:
    assert mixing_layers(MODELS[name]().model) == []


@pytest.mark.parametrize("number", [1, 2])
def test_it_is_reported_with_micro_batches(
    number: int, caplog: pytest.LogCaptureFixture
) -> None:
    x = keras.Input((5,))
    model = keras.Model(x, layers.Dense(3)(layers.Lambda(centered)(x)))
    with caplog.at_level("WARNING", "absl"):
        PipelinedModel(model, num_micro_batches=number)
    assert len(caplog.records) == number - 1


def test_examples_may_be_another_dimension() -> None:
    """A transpose to time-major values was taken for a layer that mixes examples."""
    x = start = keras.Input((5, 6))
    x = keras.ops.transpose(layers.Dense(4)(x), (1, 0, 2))
    model = keras.Model(start, keras.ops.transpose(keras.ops.cumsum(x, 0), (1, 0, 2)))
    assert mixing_layers(model) == []
    mixed = keras.Model(start, keras.ops.transpose(keras.ops.cumsum(x, 1), (1, 0, 2)))
    assert mixing_layers(mixed) == ["cumsum_1"]
