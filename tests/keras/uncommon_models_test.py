"""Models of uncommon forms and settings do what plain Keras does, or are refused.

A reading of the cells found each of them computed otherwise, without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.keras.pipelined_model import PipelinedModel
from lingvo_pipe.testing import assert_pipelined_equals_plain
from tests.keras.toy_models import numbers
from tests.support.cases import exhaustive
from tests.support.errors import fails

B, T, WIDTH = 10, 5, 4


def _weights() -> np.ndarray:
    return np.linspace(0.1, 2.0, B).astype("float32")


def _assert_alike(
    make: Callable[[], keras.Model],
    *data: Any,
    tolerance: float = 1e-4,
    batch_size: int = B - 3,
    exact_losses: bool | str = "auto",
    **compiled: Any,
) -> None:
    assert_pipelined_equals_plain(
        make,
        data,
        {"optimizer": "sgd", "loss": "mse", **compiled},
        batch_size=batch_size,
        epochs=1,
        devices=(2,),
        num_micro_batches=(2,),
        tolerance=tolerance,
        exact_losses=exact_losses,
    )


@pytest.mark.parametrize("kind", [list, exhaustive(tuple)])
def test_an_output_in_a_list_is_predicted_as_keras_does(kind: Any) -> None:
    def make() -> keras.Model:
        x = keras.Input((WIDTH,))
        return keras.Model(x, kind([layers.Dense(3)(layers.Dense(4)(x))]))

    _assert_alike(make, numbers(B, WIDTH), numbers(B, 3), batch_size=B)


@pytest.mark.exhaustive
def test_a_layer_in_one_cell_adds_a_loss_at_each_call() -> None:
    def make() -> keras.Model:
        x = keras.Input((WIDTH,))
        regularized = layers.ActivityRegularization(l2=0.1)
        y = regularized(layers.Dense(3)(x))
        return keras.Model(x, layers.Dense(2)(regularized(ops.tanh(y))))

    _assert_alike(make, numbers(B, WIDTH), numbers(B, 2))


@pytest.mark.exhaustive
def test_a_loss_that_only_training_adds_stands_beside_a_masked_loss() -> None:
    class Penalty(layers.Layer):
        def call(self, x: Any, training: bool = False) -> Any:
            if training:
                self.add_loss(0.1 * ops.mean(ops.square(x)))
            return x

        def compute_mask(self, x: Any, mask: Any = None) -> Any:
            return mask

    def make() -> keras.Model:
        tokens = keras.Input((T,), dtype="int32")
        x = layers.Embedding(9, WIDTH, mask_zero=True)(tokens)
        return keras.Model(tokens, layers.Dense(2)(Penalty()(x)))

    lengths = np.arange(B)[:, None] % T + 1
    tokens = np.where(np.arange(T) < lengths, 3, 0).astype("int32")
    _assert_alike(make, tokens, numbers(B, T, 2))


@pytest.mark.exhaustive
def test_a_mask_reaches_a_model_within_that_casts() -> None:
    tokens = np.tile([[3, 1, 0, 0, 0], [2, 0, 0, 0, 0]], [B // 2, 1]).astype("int32")

    def make() -> keras.Model:
        start = keras.Input((T, 8))  # float32
        inner = keras.Model(start, layers.GRU(WIDTH)(start))
        x = layers.Embedding(9, 8, mask_zero=True, dtype="mixed_bfloat16")
        inputs = keras.Input((T,), dtype="int32")
        return keras.Model(inputs, layers.Dense(2)(inner(x(inputs))))

    _assert_alike(make, tokens, numbers(B, 2), tolerance=0.02)


@pytest.fixture
def mixed_precision() -> Iterator[None]:
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        yield
    finally:
        keras.config.set_dtype_policy(policy)


@pytest.mark.usefixtures("mixed_precision")
def test_weights_that_are_not_cast_stay_as_in_a_mixed_model() -> None:
    class Scale(layers.Layer):
        def __init__(self) -> None:
            super().__init__(autocast=False)

        def build(self, shape: Any) -> None:
            self.scale = self.add_weight(shape=(1,), initializer="ones")

        def call(self, x: Any) -> Any:
            return x * self.scale

    x = keras.Input((WIDTH,))
    model = keras.Model(x, Scale()(layers.Dense(3)(x)))
    pipelined = PipelinedModel(model)
    expected, predicted = (
        x.predict(numbers(B, WIDTH), verbose=0) for x in (model, pipelined)
    )
    assert predicted.dtype == expected.dtype == np.float32


@pytest.mark.parametrize("has_weights", [exhaustive(False), True])
def test_flat_outputs_have_keras_own_means(has_weights: bool) -> None:
    """Keras weights the mean over a mini-batch, and a metric counts it once."""

    def make() -> keras.Model:
        x = keras.Input((WIDTH,))
        return keras.Model(x, ops.squeeze(layers.Dense(1)(layers.Dense(3)(x)), -1))

    data = [numbers(B, WIDTH), numbers(B), _weights()][: 2 + has_weights]
    _assert_alike(make, *data, metrics=["mae"])


def test_weights_of_flat_outputs_count_after_data_without_weights() -> None:
    x, y, weights = numbers(B, WIDTH), numbers(B), _weights()
    losses = []
    for is_pipelined in (False, True):
        keras.utils.set_random_seed(1)
        start = keras.Input((WIDTH,))
        model = keras.Model(start, ops.squeeze(layers.Dense(1)(start), -1))
        trained: Any = PipelinedModel(model, num_micro_batches=2)
        trained = trained if is_pipelined else model
        trained.compile("sgd", loss="mse")
        losses.append([trained.evaluate(x, y, verbose=0, batch_size=B)])
        losses[-1].append(trained.train_on_batch(x, y, sample_weight=weights))
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


class _DrawingCell(layers.Layer):
    """A cell of an RNN, with dropout that draws at each step."""

    state_size = 3

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.dropout = layers.Dense(3), layers.Dropout(0.5, seed=1)

    def build(self, shape: Any) -> None:
        self.dense.build(shape)

    def call(self, x: Any, states: Any, training: bool = False) -> Any:
        y = self.dropout(self.dense(x) + states[0], training=training)
        return y, [y]


@pytest.mark.exhaustive
def test_draws_in_a_loop_are_refused() -> None:
    """All steps would draw the same numbers there."""

    def make(**options: Any) -> keras.Model:
        layer = layers.RNN(_DrawingCell(), **options)
        return keras.Sequential([keras.Input((T, WIDTH)), layer, layers.Dense(2)])

    with pytest.raises(UserValueError, match=r"seed_generator.*\bunroll=True"):
        PipelinedModel(make())
    data = numbers(B, T, WIDTH), numbers(B, 2)
    _assert_alike(lambda: make(unroll=True), *data)


def _heads(dtype: str) -> Callable[[], keras.Model]:
    """Returns a function that makes a softmax that is 0 or 1, before another output."""

    def make() -> keras.Model:
        x = keras.Input((WIDTH,))
        options: Any = {"kernel_initializer": keras.initializers.RandomNormal(0, 100)}
        y = layers.Dense(4, dtype=dtype)(x)
        softmax = layers.Dense(3, activation="softmax", dtype=dtype, **options)(y)
        other = layers.Identity(name="a")(layers.Dense(2)(layers.Dense(3)(x)))
        if dtype == "bfloat16":
            return keras.Model(x, softmax)
        return keras.Model(x, [other, layers.Identity(name="b")(softmax)])

    return make


@pytest.mark.exhaustive
def test_logits_pass_layers_that_return_their_input() -> None:
    y = [numbers(B, 2), np.eye(3, dtype="float32")[np.arange(B) % 3]]
    loss = ["mse", "categorical_crossentropy"]
    options: Any = {"loss": loss, "batch_size": B}
    for exact in (False, True):
        _assert_alike(
            _heads("float32"), numbers(B, WIDTH), y, exact_losses=exact, **options
        )


def test_logits_of_16_bits_are_lost_as_in_keras() -> None:
    rows = B - 3  # One mini-batch.
    y = np.eye(3, dtype="float32")[np.arange(rows) % 3]
    _assert_alike(
        _heads("bfloat16"),
        numbers(rows, WIDTH),
        y,
        loss="categorical_crossentropy",
        exact_losses=True,
        tolerance=0.02,
    )


@pytest.mark.usefixtures("mixed_precision")
def test_a_sequential_model_within_rounds_its_inputs() -> None:
    x = keras.Input((2,))
    inner = keras.Sequential([keras.Input((2,)), layers.Embedding(2000, 3)])
    model = keras.Model(x, inner(x))
    tokens = np.array([[1001.0, 1003.0]], "float32")
    expected, predicted = (
        x.predict(tokens, verbose=0) for x in (model, PipelinedModel(model))
    )
    np.testing.assert_array_equal(predicted, expected)


def test_a_sequential_model_of_several_inputs_is_refused() -> None:
    class Sum(layers.Layer):
        def call(self, inputs: Any, **unused: Any) -> Any:
            return inputs[0] + inputs[1]

    inputs = [keras.Input((WIDTH,)), keras.Input((WIDTH,))]
    inner = keras.Sequential([Sum(), layers.Dense(3)])
    model = keras.Model(inputs, layers.Dense(2)(inner(inputs)))
    with fails(path=f"model {inner.name!r}"):
        PipelinedModel(model)


def test_images_of_another_size_are_refused_as_by_keras() -> None:
    x = keras.Input((8, 8, 1))
    y = layers.GlobalAveragePooling2D()(layers.Conv2D(2, 3)(x))
    model = keras.Model(x, y)
    for trained in (model, PipelinedModel(model)):
        with pytest.raises(ValueError, match="incompatible"):
            trained.predict(numbers(B, 16, 16, 1), verbose=0)


def test_a_loss_of_weights_is_refused_at_each_fit() -> None:
    model = _dense()

    def loss(y: Any, z: Any) -> Any:
        return ops.mean(ops.square(y - z), -1) + ops.sum(model.layers[0].kernel)

    pipelined: Any = PipelinedModel(model, exact_losses=True)
    pipelined.compile("sgd", loss=loss)
    for _ in range(2):
        with fails(path="compile(loss=...)"):
            pipelined.fit(numbers(B, WIDTH), numbers(B, 3), verbose=0)


def _dense() -> keras.Model:
    return keras.Sequential([keras.Input((WIDTH,)), layers.Dense(3)])


def test_a_loss_that_stays_compiled_is_still_exact() -> None:
    """Dice mixes the examples of a mini-batch."""
    x, y = numbers(B, WIDTH), np.abs(numbers(B, 3))
    losses = []
    for is_pipelined in (False, True):
        keras.utils.set_random_seed(1)
        trained: Any = _dense()
        if is_pipelined:
            trained = PipelinedModel(trained, num_micro_batches=2)
        trained.compile("sgd", loss="dice")
        losses.append([trained.train_on_batch(x, y)])
        trained.compile("sgd")
        losses[-1] += [trained.train_on_batch(x, y), trained.train_on_batch(x, y)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


def test_an_average_by_a_users_rule_is_kept() -> None:
    class Warm(layers.BatchNormalization):
        def call(self, x: Any, training: bool = False) -> Any:
            mean, variance = ops.moments(x, [0])
            if not training:
                return x - self.moving_mean
            for average, moment in (
                (self.moving_mean, mean),
                (self.moving_variance, variance),
            ):
                average.assign(0.5 * average + 0.5 * moment)
            return x - mean

    def make() -> keras.Model:
        return keras.Sequential([keras.Input((WIDTH,)), Warm(), layers.Dense(3)])

    x, y = numbers(B, WIDTH), numbers(B, 3)
    averages = []
    for is_pipelined in (False, True):
        keras.utils.set_random_seed(1)
        model = make()
        trained: Any = PipelinedModel(model) if is_pipelined else model
        trained.compile("sgd", loss="mse")
        trained.fit(x, y, epochs=2, batch_size=B, verbose=0)
        norm: Any = model.layers[0]
        averages.append([norm.moving_mean.numpy(), norm.moving_variance.numpy()])
    np.testing.assert_allclose(averages[1], averages[0], rtol=1e-5)


class _OwnLoss(PipelinedModel):
    def compute_loss(self, *args: Any, **options: Any) -> Any:
        return 0.0 * super().compute_loss(*args, **options)


def test_what_no_step_would_follow_is_refused() -> None:
    x = numbers(B, WIDTH)
    for kind in (PipelinedModel, _OwnLoss):
        trained: Any = kind(_dense())
        trained.compile("sgd", loss="mse")
        if kind is PipelinedModel:
            trained.model.compute_loss = trained.compute_loss
        with fails(path=f"model {trained.name!r}"):
            trained.fit(x, numbers(B, 3), verbose=0)
    pipelined = PipelinedModel(_dense())
    pipelined.steps_per_execution = 4
    with fails(path="compile(steps_per_execution=...)", got=4):
        pipelined.predict(x, verbose=0)
    pipelined.steps_per_execution, pipelined.run_eagerly = 1, True
    with fails(path="compile(run_eagerly=...)"):
        pipelined.predict(x, verbose=0)
