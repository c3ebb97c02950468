"""Steps, and the functions that run them, do what plain Keras's do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from lingvo_pipe.keras.pipelined_model import PipelinedModel
from tests.keras.toy_models import assert_close, numbers, sequential
from tests.support.cases import exhaustive
from tests.support.errors import fails

X, Y = numbers(8, 4), numbers(8, 3)
_Wrap = Callable[[Any], Any]


def _as_in_plain_keras(run: Callable[[_Wrap], Any], *arguments: Any) -> None:
    """Compares what `run` returns for a plain model, and for a PipelinedModel."""
    results = []
    for wrap in (lambda model: model, lambda model: PipelinedModel(model, *arguments)):
        keras.utils.set_random_seed(1)
        results.append(run(wrap))
    assert_close(results, rtol=1e-4)


def _compiled(trained: Any, optimizer: Any = None, **options: Any) -> Any:
    trained.compile(optimizer or keras.optimizers.SGD(0.01), loss="mse", **options)
    return trained


def _step(trained: Any) -> list[Any]:
    return [trained.train_on_batch(X, Y), *trained.get_weights()]


class Scaled(keras.optimizers.SGD):
    """Scales the loss, and its gradients back."""

    def scale_loss(self, loss: Any) -> Any:
        return loss * 8.0

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        return super().apply([g / 8.0 for g in grads], trainable_variables)


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.optimizers.SGD(0.01, loss_scale_factor=128.0),
        exhaustive(lambda: Scaled(0.01)),
    ],
)
def test_an_optimizer_scales_the_loss(make: Callable[[], Any]) -> None:
    """Once gradients were only divided."""
    _as_in_plain_keras(lambda wrap: _step(_compiled(wrap(sequential()), make())))


@pytest.mark.exhaustive
def test_a_loss_is_reported_though_its_scaled_one_overflows() -> None:
    def run(wrap: _Wrap) -> list[Any]:
        inner = keras.optimizers.SGD(0.01)
        scaling = keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**127)
        return _step(_compiled(wrap(sequential()), scaling))

    _as_in_plain_keras(run, 1, 2)


def test_the_loss_is_not_scaled_if_the_user_says_so() -> None:
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = sequential()
    finally:
        keras.config.set_dtype_policy("float32")
    optimizer = keras.optimizers.SGD(0.01)
    trained = _compiled(PipelinedModel(model), optimizer, auto_scale_loss=False)
    assert trained.optimizer is model.optimizer is optimizer
    again = PipelinedModel(model)
    assert again.optimizer is optimizer


@pytest.mark.exhaustive
def test_functions_can_be_traced_again() -> None:
    """With settings of layers that have changed."""

    def run(wrap: _Wrap) -> list[Any]:
        leaky = layers.LeakyReLU(0.1)
        trained = _compiled(wrap(sequential(layers.Dense(5), leaky)))
        results = [trained.train_on_batch(X, Y), trained.predict(X, verbose=0)]
        leaky.negative_slope = 0.9
        trained.make_train_function(force=True)
        trained.make_predict_function(force=True)
        results += [trained.train_on_batch(X, Y), trained.predict(X, verbose=0)]
        leaky.negative_slope = 0.3
        trained.predict_function = None
        return [*results, trained.predict(X, verbose=0)]

    _as_in_plain_keras(run)


def test_penalties_are_of_what_is_trainable_when_evaluated() -> None:
    def run(wrap: _Wrap) -> list[Any]:
        regularizer = keras.regularizers.L2(1.0)
        model = sequential(layers.Dense(5, kernel_regularizer=regularizer))
        trained = _compiled(wrap(model))
        model.layers[0].trainable = False
        return [trained.evaluate(X, Y, verbose=0)]

    _as_in_plain_keras(run)


def test_a_model_without_an_optimizer_is_evaluated() -> None:
    def run(wrap: _Wrap) -> list[Any]:
        trained = wrap(sequential())
        trained.compile(optimizer=None, loss="mse", metrics=["mae"])
        return trained.evaluate(X, Y, verbose=0)

    _as_in_plain_keras(run)


def test_weights_that_no_layer_of_the_graph_has_stay() -> None:
    def run(wrap: _Wrap) -> list[Any]:
        inputs = keras.Input((4,))
        model = keras.Model(inputs, layers.Dense(3)(inputs))
        model.head = layers.Dense(3)
        model.head.build((None, 2))
        return _step(_compiled(wrap(model)))

    _as_in_plain_keras(run)


def test_a_penalty_may_be_a_constant() -> None:
    def run(wrap: _Wrap) -> list[Any]:
        regularizer = keras.regularizers.L1L2(0.0, 0.0)
        dense = layers.Dense(5, kernel_regularizer=regularizer)
        return _step(_compiled(wrap(sequential(dense))))

    _as_in_plain_keras(run)


class _Squares(layers.Layer):
    """Adds a loss for each example, which Keras sums."""

    def call(self, x: Any) -> Any:
        self.add_loss(0.01 * ops.sum(ops.square(x), axis=-1))
        return x


@pytest.mark.exhaustive
def test_layers_may_add_a_loss_for_each_example() -> None:
    model = sequential(layers.Dense(5), _Squares())
    _as_in_plain_keras(
        lambda wrap: _step(_compiled(wrap(keras.models.clone_model(model))))
    )


@pytest.mark.exhaustive
def test_a_masked_loss_and_losses_of_layers() -> None:
    """With micro-batches of unequal numbers of timesteps."""

    def run(wrap: _Wrap) -> list[Any]:
        tokens = keras.Input((5,), dtype="int32")
        x = layers.Embedding(9, 4, mask_zero=True)(tokens)
        x = layers.Dense(4, activity_regularizer=keras.regularizers.L2(0.01))(x)
        trained = wrap(keras.Model(tokens, layers.Dense(9)(x)))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        trained.compile(keras.optimizers.SGD(0.1), loss=loss)
        rows = [[1, 2, 0, 0, 0], [3, 4, 5, 6, 0], [7, 0, 0, 0, 0], [8, 8, 8, 0, 0]]
        return [trained.train_on_batch(np.array(rows), np.array(rows))]

    _as_in_plain_keras(run, 1, 2)


def _of_two_losses(wrap: _Wrap) -> list[Any]:
    inputs = keras.Input((4,))
    trained = wrap(keras.Model(inputs, [layers.Dense(3)(inputs) for _ in range(2)]))
    trained.compile(keras.optimizers.SGD(0.01), loss=["mse", "mae"])
    return [trained.train_on_batch(X, [Y, Y])]


@pytest.mark.exhaustive
def test_floats_of_64_bits() -> None:
    keras.config.set_floatx("float64")
    try:
        _as_in_plain_keras(_of_two_losses, 1, 2)
    finally:
        keras.config.set_floatx("float32")


def _difference() -> keras.Model:
    inputs = [keras.Input((4,), name=name) for name in "ab"]
    return keras.Model(inputs, layers.Dense(3)(inputs[0] - inputs[1]))


def _predict_twice(wrap: _Wrap) -> list[Any]:
    trained = wrap(_difference())
    return [trained.predict([X, X[::-1]], verbose=0), trained.predict_on_batch([X, X])]


def _by_name_and_in_order(wrap: _Wrap) -> list[Any]:
    trained = wrap(_difference())
    data = {"a": X, "b": X[::-1].copy()}
    return [trained.predict(x, verbose=0) for x in (data, [*data.values()])]


def _generator_with_none(wrap: _Wrap) -> list[Any]:
    def batches() -> Iterator[Any]:
        for scale in (1.0, 2.0):
            yield scale * X, Y, None

    return _compiled(wrap(sequential())).fit(batches(), verbose=0).history["loss"]


class _Merge(layers.Layer):
    def call(self, a: Any, b: Any) -> Any:
        return b if a is None else a + b

    def compute_output_shape(self, a_shape: Any, b_shape: Any) -> Any:
        return b_shape


def _without_an_optional_input(wrap: _Wrap) -> list[Any]:
    a = keras.Input((4,), optional=True)
    b = keras.Input((4,))
    trained = _compiled(wrap(keras.Model([a, b], layers.Dense(3)(_Merge()(a, b)))))
    return [trained.train_on_batch([None, X], Y)]


def _sparse(wrap: _Wrap) -> list[Any]:
    data = tf.sparse.from_dense(np.maximum(X, 0))
    trained = _compiled(wrap(sequential()))
    return trained.fit(data, Y, shuffle=False, verbose=0).history["loss"]


@pytest.mark.parametrize(
    "run",
    [
        _by_name_and_in_order,
        _generator_with_none,
        *map(exhaustive, [_predict_twice, _without_an_optional_input, _sparse]),
    ],
)
def test_forms_of_data(run: Callable[[_Wrap], Any]) -> None:
    _as_in_plain_keras(run)


def test_a_call_rounds_inputs_if_the_models_does() -> None:
    """Above 256, numbers of tokens are no numbers of 16 bits."""

    def run(wrap: _Wrap) -> list[Any]:
        ids = keras.Input((2,))
        table = layers.Embedding(2000, 3, dtype="mixed_bfloat16")
        model = keras.Model(ids, layers.Flatten()(table(ids)), dtype="mixed_bfloat16")
        outputs = wrap(model)(np.array([[1001.0, 1003.0]], "float32"))
        return [ops.cast(outputs, "float32")]

    _as_in_plain_keras(run)


def test_what_cannot_be_added_up_is_refused() -> None:
    model = sequential(layers.Dense(16))
    model.quantize("float8")
    with fails(path="PipelinedModel(num_micro_batches=...)", got=2):
        _step(_compiled(PipelinedModel(model, 1, 2)))


def test_layers_that_keras_recomputes_are_refused() -> None:
    """Their weights were not trained."""
    with keras.RematScope(mode="full"):
        dense = layers.Dense(5, name="recomputed")
    with fails(path="layer 'recomputed'"):
        PipelinedModel(sequential(dense))
