"""Steps, and the functions that run them, do what plain Keras's do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from lingvo_pipe.keras import pipelined_model
from lingvo_pipe.keras.pipelined_model import PipelinedModel
from tests.keras.toy_models import (
    Wrap,
    X,
    Y,
    after_a_step,
    as_in_plain_keras,
    assert_same,
    compiled,
    sequential,
)
from tests.support.cases import exhaustive
from tests.support.errors import fails


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
    as_in_plain_keras(lambda wrap: after_a_step(compiled(wrap(sequential()), make())))


@pytest.mark.exhaustive
def test_a_loss_is_reported_though_its_scaled_one_overflows() -> None:
    def run(wrap: Wrap) -> list[Any]:
        inner = keras.optimizers.SGD(0.01)
        scaling = keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**127)
        return after_a_step(compiled(wrap(sequential()), scaling))

    as_in_plain_keras(run, 1, 2)


def test_the_loss_is_not_scaled_if_the_user_says_so() -> None:
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = sequential()
    finally:
        keras.config.set_dtype_policy("float32")
    optimizer = keras.optimizers.SGD(0.01)
    trained = compiled(PipelinedModel(model), optimizer, auto_scale_loss=False)
    assert trained.optimizer is model.optimizer is optimizer
    again = PipelinedModel(model)
    assert again.optimizer is optimizer


@pytest.mark.exhaustive
def test_functions_can_be_traced_again() -> None:
    """With settings of layers that have changed."""

    def run(wrap: Wrap) -> list[Any]:
        leaky = layers.LeakyReLU(0.1)
        trained = compiled(wrap(sequential(layers.Dense(5), leaky)))
        results = [trained.train_on_batch(X, Y), trained.predict(X, verbose=0)]
        leaky.negative_slope = 0.9
        trained.make_train_function(force=True)
        trained.make_predict_function(force=True)
        results += [trained.train_on_batch(X, Y), trained.predict(X, verbose=0)]
        leaky.negative_slope = 0.3
        trained.predict_function = None
        return [*results, trained.predict(X, verbose=0)]

    as_in_plain_keras(run)


def test_a_users_own_loop_calls_the_steps() -> None:
    """Before the first `fit`, slots were new at each step, and so 0."""

    def run(wrap: Wrap) -> list[Any]:
        trained = compiled(wrap(sequential()), keras.optimizers.SGD(0.1, momentum=0.9))
        logs = [trained.train_step((X, Y)) for _ in range(3)]
        logs.append(trained.test_step((X, Y)))
        return [*(x["loss"] for x in logs), *trained.get_weights()]

    as_in_plain_keras(run)


def test_a_users_own_function_calls_the_steps() -> None:
    def run(wrap: Wrap) -> list[Any]:
        trained = compiled(wrap(sequential()))
        train, evaluate = map(tf.function, (trained.train_step, trained.test_step))
        losses = [step((X, Y))["loss"] for step in (train, train, evaluate)]
        return [*losses, *trained.get_weights()]

    as_in_plain_keras(run)


def test_a_step_of_unknown_rows_is_refused() -> None:
    """It compared None with the number of micro-batches."""
    trained = compiled(PipelinedModel(sequential()))
    rows = tf.TensorSpec([None, 4]), tf.TensorSpec([None, 3])
    for step in (trained.train_step, trained.test_step):
        with fails(path="inputs", got=[None]):
            tf.function(step, autograph=False).get_concrete_function(rows)


def test_a_step_that_failed_is_not_applied_by_its_diagnosis() -> None:
    """It trained the mini-batch, and its error was raised all the same."""

    def fail(data: Any) -> Any:
        raise tf.errors.InternalError(None, None, "lost")

    trained = compiled(PipelinedModel(sequential()))
    before = after_a_step(trained)[1:]
    functions = trained._made_for_cells
    keys = [key for key in functions if key[0] == trained.train_step]
    functions.update(dict.fromkeys(keys, fail))
    with pytest.raises(tf.errors.InternalError, match="lost"):
        after_a_step(trained)
    assert int(trained.optimizer.iterations) == len(keys) == 1
    assert_same([before, trained.get_weights()])


def test_a_loss_and_metrics_of_an_earlier_compile_stay() -> None:
    def run(wrap: Wrap) -> list[Any]:
        model = compiled(sequential(), metrics=["mae"])
        model.compile(keras.optimizers.SGD(0.02))
        history = wrap(model).fit(X, Y, shuffle=False, verbose=0).history
        return [history["loss"], history["mae"]]

    as_in_plain_keras(run)


def test_metrics_that_are_attributes_are_reported_and_reset() -> None:
    def run(wrap: Wrap) -> list[Any]:
        model = sequential()
        model.steps = number = keras.metrics.Sum(name="steps")
        trained = compiled(wrap(model))
        count = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: number.update_state(1.0)
        )
        history = trained.fit(X, Y, 4, epochs=2, verbose=0, callbacks=[count]).history
        return [history["steps"], len(trained.evaluate(X, Y, verbose=0))]

    as_in_plain_keras(run)


def test_a_model_without_an_optimizer_is_evaluated() -> None:
    def run(wrap: Wrap) -> list[Any]:
        trained = wrap(sequential())
        trained.compile(optimizer=None, loss="mse", metrics=["mae"])
        return trained.evaluate(X, Y, verbose=0)

    as_in_plain_keras(run)


def test_weights_that_no_layer_of_the_graph_has_stay() -> None:
    def run(wrap: Wrap) -> list[Any]:
        inputs = keras.Input((4,))
        model = keras.Model(inputs, layers.Dense(3)(inputs))
        model.head = layers.Dense(3)
        model.head.build((None, 2))
        return after_a_step(compiled(wrap(model)))

    as_in_plain_keras(run)


def _difference() -> keras.Model:
    inputs = [keras.Input((4,), name=name) for name in "ab"]
    return keras.Model(inputs, layers.Dense(3)(inputs[0] - inputs[1]))


def _predict_twice(wrap: Wrap) -> list[Any]:
    trained = wrap(_difference())
    return [trained.predict([X, X[::-1]], verbose=0), trained.predict_on_batch([X, X])]


def _by_name_and_in_order(wrap: Wrap) -> list[Any]:
    trained = wrap(_difference())
    data = {"a": X, "b": X[::-1].copy()}
    return [trained.predict(x, verbose=0) for x in (data, [*data.values()])]


def _generator_with_none(wrap: Wrap) -> list[Any]:
    def batches() -> Iterator[Any]:
        for scale in (1.0, 2.0):
            yield scale * X, Y, None

    return compiled(wrap(sequential())).fit(batches(), verbose=0).history["loss"]


class _Merge(layers.Layer):
    def call(self, a: Any, b: Any) -> Any:
        return b if a is None else a + b

    def compute_output_shape(self, a_shape: Any, b_shape: Any) -> Any:
        return b_shape


def _without_an_optional_input(wrap: Wrap) -> list[Any]:
    a = keras.Input((4,), optional=True)
    b = keras.Input((4,))
    trained = compiled(wrap(keras.Model([a, b], layers.Dense(3)(_Merge()(a, b)))))
    return [trained.train_on_batch([None, X], Y)]


def _sparse(wrap: Wrap) -> list[Any]:
    data = tf.sparse.from_dense(np.maximum(X, 0))
    trained = compiled(wrap(sequential()))
    return trained.fit(data, Y, shuffle=False, verbose=0).history["loss"]


@pytest.mark.parametrize(
    "run",
    [
        _by_name_and_in_order,
        _generator_with_none,
        *map(exhaustive, [_predict_twice, _without_an_optional_input, _sparse]),
    ],
)
def test_forms_of_data(run: Callable[[Wrap], Any]) -> None:
    as_in_plain_keras(run)


def test_a_call_rounds_inputs_if_the_models_does() -> None:
    """Above 256, numbers of tokens are no numbers of 16 bits."""

    def run(wrap: Wrap) -> list[Any]:
        ids = keras.Input((2,))
        table = layers.Embedding(2000, 3, dtype="mixed_bfloat16")
        model = keras.Model(ids, layers.Flatten()(table(ids)), dtype="mixed_bfloat16")
        outputs = wrap(model)(np.array([[1001.0, 1003.0]], "float32"))
        return [ops.cast(outputs, "float32")]

    as_in_plain_keras(run)


def test_what_cannot_be_added_up_is_refused() -> None:
    model = sequential(layers.Dense(16))
    model.quantize("float8")
    trained = compiled(PipelinedModel(model, 1, 2))
    for step in (after_a_step, lambda trained: trained.train_step((X, Y))):
        with fails(path="PipelinedModel(num_micro_batches=...)", got=2):
            step(trained)


def test_gradients_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call of `train_on_batch` looked at all variables."""
    checked: list[Any] = []
    note = lambda model, number: checked.append(model)  # noqa: E731
    monkeypatch.setattr(pipelined_model, "check_gradients", note)
    model = sequential()
    trained = compiled(PipelinedModel(model))
    for _ in range(2):
        after_a_step(trained)
    assert checked == [model]


def test_layers_that_keras_recomputes_are_refused() -> None:
    """Their weights were not trained."""
    with keras.RematScope(mode="full"):
        dense = layers.Dense(5, name="recomputed")
    with fails(path="layer 'recomputed'"):
        PipelinedModel(sequential(dense))
