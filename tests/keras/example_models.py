"""Small Keras models of each kind, with data for two steps an epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
from keras import layers


class Example(NamedTuple):
    """A model with its data and loss."""

    model: keras.Model
    x: Any
    y: Any
    loss: Any


def _classes() -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def _labels(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 5, shape)


def _tokens() -> np.ndarray:
    random = np.random.default_rng(2)
    tokens = random.integers(1, 20, (16, 10))
    for row in tokens:
        row[random.integers(3, 11) :] = 0
    return tokens


def mlp() -> Example:
    first, second, third = (layers.Dense(n, activation="relu") for n in (32, 27, 16))
    hidden = [first, layers.Dropout(0.3), layers.LayerNormalization(), second]
    hidden += [layers.GaussianNoise(0.1), third]
    model = keras.Sequential([keras.Input((16,)), *hidden, layers.Dense(5)])
    return Example(model, _numbers(16, 16), _labels(16), _classes())


def residual() -> Example:
    x = image = keras.Input((12, 12, 3))
    x = layers.Conv2D(8, 3, padding="same")(x)
    for _ in range(2):
        y = layers.BatchNormalization(momentum=0.8)(x)
        y = layers.Conv2D(8, 3, padding="same")(layers.ReLU()(y))
        x = layers.Add()([x, y])
    x = layers.Dense(5)(layers.GlobalAveragePooling2D()(x))
    return Example(
        keras.Model(image, x), _numbers(16, 12, 12, 3), _labels(16), _classes()
    )


def _block(x: Any, **attention: Any) -> Any:
    """Returns the outputs of a Transformer's layer."""
    y = layers.LayerNormalization()(x)
    x = x + layers.MultiHeadAttention(2, 8, dropout=0.2)(y, y, **attention)
    y = layers.Dense(32, activation="gelu")(layers.LayerNormalization()(x))
    return x + layers.Dense(16)(layers.Dropout(0.1)(y))


def transformer() -> Example:
    tokens = keras.Input((10,), dtype="int32")
    x = layers.Embedding(20, 16, mask_zero=True)(tokens)
    logits = layers.Dense(20)(_block(x, use_causal_mask=True))
    return Example(keras.Model(tokens, logits), _tokens(), _tokens(), _classes())


def tied_transformer() -> Example:
    """A Transformer with dense gradients: its embedding makes the logits as well."""
    if not hasattr(layers, "ReversibleEmbedding"):
        pytest.skip("This Keras has no ReversibleEmbedding.")
    tokens = keras.Input((10,), dtype="int32")
    embedding = layers.ReversibleEmbedding(20, 16, mask_zero=True)
    x = _block(embedding(tokens), use_causal_mask=True)
    model = keras.Model(tokens, embedding(x, reverse=True))
    return Example(model, _tokens(), _tokens(), _classes())


class _PatchEncoder(layers.Layer):
    """Projects patches and adds an embedding of their positions."""

    def __init__(self, num_patches: int, dim: int) -> None:
        super().__init__()
        self.projection = layers.Dense(dim)
        self.position_embedding = layers.Embedding(num_patches, dim)
        self.num_patches = num_patches

    def build(self, shape: Any) -> None:
        self.projection.build(shape)
        self.position_embedding.build((self.num_patches,))

    def call(self, patches: Any) -> Any:
        positions = keras.ops.arange(self.num_patches)
        return self.projection(patches) + self.position_embedding(positions)


def vision_transformer() -> Example:
    image = keras.Input((8, 8, 3))
    x = layers.Reshape((4, 48))(keras.ops.image.extract_patches(image, 4))
    x = _PatchEncoder(4, 16)(x)
    x = _block(_block(x))
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
    return Example(
        keras.Model(image, layers.Dense(5, activation="softmax")(x)),
        _numbers(16, 8, 8, 3),
        _labels(16),
        "sparse_categorical_crossentropy",
    )


def mobile_net() -> Example:
    model = keras.applications.MobileNetV2(
        (32, 32, 3), alpha=0.35, weights=None, classes=5
    )
    return Example(
        model,
        _numbers(16, 32, 32, 3),
        _labels(16),
        "sparse_categorical_crossentropy",
    )


def recurrent() -> Example:
    tokens = keras.Input((10,), dtype="int32")
    x = layers.Embedding(20, 16, mask_zero=True)(tokens)
    x = layers.LSTM(16, return_sequences=True, dropout=0.1)(x)
    x = layers.Bidirectional(layers.GRU(8))(x)
    return Example(
        keras.Model(tokens, layers.Dense(5)(x)), _tokens(), _labels(16), _classes()
    )


def shared() -> Example:
    """Layers called twice, two inputs and outputs, losses besides the task's."""
    first, second = keras.Input((16,)), keras.Input((16,))
    dense = layers.Dense(
        16, kernel_regularizer="l2", activity_regularizer=keras.regularizers.L2(1e-3)
    )
    dropout = layers.Dropout(0.4)
    a, b = dropout(dense(first)), dropout(dense(second))
    inner = keras.Sequential([keras.Input((16,)), layers.Dense(8), layers.Dropout(0.2)])
    c = inner(a) * inner(b)
    outputs = [
        layers.Dense(1, name="number")(c),
        layers.Dense(5, name="label")(keras.ops.concatenate([c, a], -1)),
    ]
    return Example(
        keras.Model([first, second], outputs),
        [0.3 * _numbers(16, 16), 0.2 * _numbers(16, 16) + 0.1],
        [_numbers(16, 1), _labels(16)],
        ["mse", _classes()],
    )


MODELS: dict[str, Callable[[], Example]] = {
    make.__name__: make
    for make in (
        *(mlp, residual, transformer, recurrent, shared, vision_transformer),
        *(mobile_net, tied_transformer),
    )
}
