"""Random functional models: graphs of layers that users write, with data and a loss.

inputs      vectors, tokens with a mask, or both
vectors     [B, 8]: each is made of one or two earlier ones, by a random step
outputs     one or two, of random vectors, by a loss each
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
from keras import layers, ops

WIDTH = 8
_ROWS = 8
_CLASSES = 3
_MAX_STEPS = 9


class _Counts(layers.Layer):
    """Subtracts a moving mean, and counts the calls."""

    def build(self, shape: Any) -> None:
        self.mean = self.add_weight(shape=(WIDTH,), trainable=False, name="mean")
        self.calls = self.add_weight(shape=(), trainable=False, name="calls")

    def call(self, x: Any, training: bool = False) -> Any:
        before = self.mean + 0.0  # It is read before it is written.
        if training:
            self.mean.assign(0.9 * before + 0.1 * ops.mean(x, axis=0))
            self.calls.assign(self.calls + 1.0)
        return x - before


class _NoisyKernel(layers.Layer):
    """Multiplies by a kernel with noise, which all examples share."""

    def __init__(self, scale: float, **options: Any):
        super().__init__(**options)
        self._scale = scale  # No configuration holds it.
        self._generator = keras.random.SeedGenerator(11)

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(WIDTH, WIDTH), name="kernel")

    def call(self, x: Any, training: bool = False) -> Any:
        noise = keras.random.normal((WIDTH, WIDTH), seed=self._generator)
        return ops.matmul(x, self.kernel + (self._scale * noise if training else 0.0))


class _OwnNoise(layers.Layer):
    """Adds noise of each example, and a loss."""

    def __init__(self, **options: Any):
        super().__init__(**options)
        self._generator = keras.random.SeedGenerator(12)

    def call(self, x: Any, training: bool = False) -> Any:
        self.add_loss(0.01 * ops.mean(ops.square(x)))
        if not training:
            return x
        return x + 0.1 * keras.random.normal(ops.shape(x), seed=self._generator)


class _Centers(layers.Layer):
    """Subtracts the mean of the mini-batch."""

    def call(self, x: Any) -> Any:
        return x - 0.5 * ops.mean(x, axis=0, keepdims=True)


class _Tuned(layers.Layer):
    """Normalizes by averages that stay in training, as for fine-tuning."""

    def build(self, shape: Any) -> None:
        self.norm = layers.BatchNormalization(name="norm")
        self.norm.build(shape)
        self.norm.moving_mean.assign(np.linspace(-1.0, 1.0, WIDTH))

    def call(self, x: Any) -> Any:
        return self.norm(x, training=False)


@dataclass
class _Drawn:
    """A model that is being drawn."""

    random: np.random.Generator
    shared: list[Callable[[Any], Any]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)  # Of the steps, for errors.

    def scale(self) -> float:
        return float(self.random.uniform(0.2, 2.0))


def _dense(drawn: _Drawn, x: Any, y: Any) -> Any:
    scale = drawn.scale()
    options: dict[str, Any] = {}
    if drawn.random.random() < 0.3:
        options["kernel_regularizer"] = keras.regularizers.L2(0.01)
    if drawn.random.random() < 0.2:
        options["activity_regularizer"] = keras.regularizers.L2(0.01)
    if drawn.random.random() < 0.2:
        options["kernel_constraint"] = keras.constraints.MaxNorm(1.0)
    layer = layers.Dense(WIDTH, lambda z: ops.tanh(scale * z), **options)
    layer.trainable = bool(drawn.random.random() < 0.8)
    drawn.shared.append(layer)
    return layer(x)


def _again(drawn: _Drawn, x: Any, y: Any) -> Any:
    if not drawn.shared:
        return _dense(drawn, x, y)
    return drawn.shared[drawn.random.integers(len(drawn.shared))](x)


def _inner_model(drawn: _Drawn, x: Any, y: Any) -> Any:
    rate = 0.3 if drawn.random.random() < 0.5 else 0.0
    dense = layers.Dense(WIDTH, activation="relu")
    inner: list[Any] = [keras.Input((WIDTH,)), dense, layers.Dropout(rate, seed=5)]
    model = keras.Sequential(inner)
    if drawn.random.random() < 0.5:
        start = keras.Input((WIDTH,))
        model = keras.Model(start, [ops.add(start, model(start))])
        made = model(x)[0]
        drawn.shared.append(lambda z: model(z)[0])
        return made
    drawn.shared.append(model)
    return model(x)


def _model_of_two(drawn: _Drawn, x: Any, y: Any) -> Any:
    """Returns the outputs of a model that is given its inputs in some form."""
    former, later = (keras.Input((WIDTH,), name=name) for name in ("former", "a_later"))
    difference = layers.Dense(WIDTH)(former) - 0.5 * layers.Dense(WIDTH)(later)
    model = keras.Model([former, later], difference)
    forms = [x, y], {"former": x, "a_later": y}, {"a_later": y, "b": x, "former": x}
    return model(forms[drawn.random.integers(len(forms))])


def _model_of_integers(drawn: _Drawn, x: Any, y: Any) -> Any:
    start = keras.Input((WIDTH,))
    model = keras.Model(start, layers.Dense(WIDTH)(start / 8.0))
    return model(ops.cast(8.0 * ops.tanh(x), "int32")) + x


def _own_array(drawn: _Drawn, x: Any, y: Any) -> Any:
    array = drawn.random.normal(size=(WIDTH,)).astype("float32")
    return layers.Lambda(lambda z: z * array)(x)


def _attention(drawn: _Drawn, x: Any, y: Any) -> Any:
    both = ops.stack([x, y], axis=1)
    layer = layers.MultiHeadAttention(2, 4, dropout=0.2, use_bias=False, seed=6)
    return layers.Flatten()(layers.Dense(4)(layer(both, both)))


def _recurrent(drawn: _Drawn, x: Any, y: Any) -> Any:
    return layers.GRU(WIDTH, dropout=0.2, seed=7)(ops.reshape(x, (-1, 2, 4)))


def _plus_noise_of_all(drawn: _Drawn, x: Any, y: Any) -> Any:
    return layers.Dropout(0.3, noise_shape=(1, WIDTH), seed=int(drawn.scale() * 50))(x)


_STEPS: dict[str, Callable[[_Drawn, Any, Any], Any]] = {
    "dense": _dense,
    "again": _again,
    "inner model": _inner_model,
    "model of two": _model_of_two,
    "model of integers": _model_of_integers,
    "tuned": lambda drawn, x, y: _Tuned()(x),
    "own array": _own_array,
    "attention": _attention,
    "recurrent": _recurrent,
    "noise of all": _plus_noise_of_all,
    "counts": lambda drawn, x, y: _Counts()(x),
    "noisy kernel": lambda drawn, x, y: _NoisyKernel(drawn.scale())(x),
    "own noise": lambda drawn, x, y: _OwnNoise()(x),
    "dropout": lambda drawn, x, y: layers.Dropout(0.4, seed=8)(x),
    "noise": lambda drawn, x, y: layers.GaussianNoise(0.2, seed=9)(x),
    "layer norm": lambda drawn, x, y: layers.LayerNormalization()(x),
    "batch norm": lambda drawn, x, y: layers.BatchNormalization(momentum=0.5)(x),
    "centers": lambda drawn, x, y: _Centers()(x),
    "add": lambda drawn, x, y: layers.Add()([x, y]),
    "weighted sum": lambda drawn, x, y: drawn.scale() * x - y / 3.0,
    "maximum": lambda drawn, x, y: ops.maximum(x, ops.roll(y, 1, axis=-1)),
    "gate": lambda drawn, x, y: x * ops.sigmoid(y),
    "concatenate": lambda drawn, x, y: _dense(
        drawn, layers.Concatenate()([x, y])[:, 4:12], y
    ),
}


@dataclass(frozen=True)
class RandomModel:
    """A random model with its data."""

    make: Callable[[], keras.Model]
    data: tuple[Any, ...]
    compile_args: Callable[[], dict[str, Any]]
    names: list[str]

    def uses(self, name: str) -> bool:
        """Returns True if a step of this name made one of the vectors."""
        return name in self.names


def random_model(seed: int) -> RandomModel:
    """Returns the model of a seed."""
    random = np.random.default_rng([seed, 1])
    has_tokens, num_vectors = random.random() < 0.3, int(random.integers(1, 3))
    kinds = ["classes" if random.random() < 0.5 else "numbers" for _ in range(2)]
    kinds = kinds[: random.integers(1, 3)]
    drawn = _Drawn(np.random.default_rng(seed))
    _graph(drawn, has_tokens, num_vectors, kinds)  # For the names.

    def make() -> keras.Model:
        return _graph(
            _Drawn(np.random.default_rng(seed)), has_tokens, num_vectors, kinds
        )

    x: list[Any] = [random.normal(size=(2 * _ROWS, WIDTH)) for _ in range(num_vectors)]
    if has_tokens:
        tokens = random.integers(1, 9, (2 * _ROWS, 5))
        tokens[:, 3:] *= random.integers(0, 2, (2 * _ROWS, 1))
        x.append(tokens)
    y = [
        random.integers(0, _CLASSES, 2 * _ROWS)
        if kind == "classes"
        else random.normal(size=(2 * _ROWS, _CLASSES))
        for kind in kinds
    ]
    losses = [
        "sparse_categorical_crossentropy" if kind == "classes" else "mse"
        for kind in kinds
    ]
    weights = [float(random.uniform(0.5, 2.0)) for _ in kinds]
    data: tuple[Any, ...] = (x, y)
    if len(kinds) == 1:
        data = x, y[0], random.uniform(0.0, 2.0, 2 * _ROWS)
    momentum, is_adam = float(random.uniform(0, 0.9)), random.random() < 0.3
    # Keras itself cannot divide the gradients of rows.
    scale = 64.0 if random.random() < 0.3 and not has_tokens else None

    def compile_args() -> dict[str, Any]:
        options: dict[str, Any] = {"learning_rate": 0.01, "loss_scale_factor": scale}
        optimizer: Any = keras.optimizers.SGD(**options)  # Others leave rows out.
        if is_adam and not has_tokens:
            options |= {"epsilon": 1e-2, "use_ema": True}
            optimizer = keras.optimizers.AdamW(**options)
        elif not has_tokens:
            options |= {"momentum": momentum, "nesterov": True}
            optimizer = keras.optimizers.SGD(**options)
        return {"optimizer": optimizer, "loss": losses, "loss_weights": weights}

    return RandomModel(make, data, compile_args, drawn.names)


def _graph(
    drawn: _Drawn, has_tokens: bool, num_vectors: int, kinds: list[str]
) -> keras.Model:
    random = drawn.random
    inputs = [keras.Input((WIDTH,)) for _ in range(num_vectors)]
    vectors = list(inputs)
    if has_tokens:
        inputs.append(keras.Input((5,), dtype="int32"))
        embedded = layers.Embedding(9, 6, mask_zero=True)(inputs[-1])
        pool: Any = layers.GlobalAveragePooling1D()
        if random.random() < 0.5:
            pool = layers.LSTM(WIDTH)
        vectors.append(layers.Dense(WIDTH)(pool(embedded)))
    for i in range(random.integers(2, _MAX_STEPS)):
        name = str(random.choice(list(_STEPS))) if i else "dense"  # Two cells at least.
        drawn.names.append(name)
        x, y = (vectors[-1 - random.integers(min(3, len(vectors)))] for _ in range(2))
        vectors.append(_STEPS[name](drawn, x, y))
    merged = [layers.Average()(vectors)] if len(vectors) > 1 else vectors
    outputs = [
        layers.Dense(_CLASSES, activation="softmax" if kind == "classes" else None)(
            merged[0] if i == 0 else vectors[-1]
        )
        for i, kind in enumerate(kinds)
    ]
    return keras.Model(inputs, outputs if len(kinds) > 1 else outputs[0])
