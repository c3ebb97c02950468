"""State besides weights follows plain Keras's: seeds, frozen averages, storage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from lingvo_pipe.keras.pipelined_model import PipelinedModel


class _Sampling(layers.Layer):
    """Draws numbers in evaluation too, as variational autoencoders do."""

    def __init__(self) -> None:
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(3)

    def call(self, x: Any) -> Any:
        shape = keras.ops.shape(x)
        return x + keras.random.normal(shape, seed=self.seed_generator)


def _numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(1.0, 2.0, shape).astype("float32")


def _both(make: Callable[[], keras.Model]) -> Any:
    """Yields the plain model and another one in two stages, each with its trainer."""
    for pipelined in (False, True):
        keras.utils.set_random_seed(1)
        model = make()
        yield model, PipelinedModel(model, 2, 3) if pipelined else model


def test_draws_of_evaluations_are_plain_keras_own() -> None:
    """Each example and each mini-batch has its own numbers, for any M."""
    x, y, found = _numbers(10, 4), _numbers(10, 2), []

    def make() -> keras.Model:
        shared, inputs = _Sampling(), keras.Input((4,))
        z = shared(layers.Dense(5)(shared(layers.Dense(4)(inputs))))
        return keras.Model(inputs, layers.Dense(2)(layers.Dropout(0.3)(z)))

    for model, trained in _both(make):
        trained.compile("sgd", loss="mse")
        options = {"batch_size": 6, "verbose": 0}
        results = [trained.predict(x, **options), trained.evaluate(x, y, **options)]
        trained.fit(x, y, shuffle=False, **options)
        found.append([*results, *model.variables])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_batch_normalization_without_weights_can_be_frozen() -> None:
    def make() -> keras.Model:
        norm = layers.BatchNormalization(scale=False, center=False)
        parts = [layers.Dense(3), norm, layers.Dense(2)]
        return keras.Sequential([keras.Input((4,)), *parts])

    x, y, found = _numbers(6, 4), _numbers(6, 2), []
    for model, trained in _both(make):
        model.layers[1].trainable = False
        trained.compile("sgd", loss="mse")
        trained.fit(x, y, verbose=0, shuffle=False)
        found.append(model.get_weights())
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_averages_with_a_momentum_of_one_stay() -> None:
    norm = layers.BatchNormalization(momentum=1.0)
    model = keras.Sequential([keras.Input((4,)), norm, layers.Dense(2)])
    trained: Any = PipelinedModel(model, num_micro_batches=2)
    trained.compile("sgd", loss="mse")
    trained.fit(_numbers(6, 4), _numbers(6, 2), verbose=0)
    np.testing.assert_array_equal(norm.moving_mean, np.zeros(4))
    np.testing.assert_array_equal(norm.moving_variance, np.ones(4))


def test_functions_of_the_plain_model_see_the_new_storage() -> None:
    inner = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
    model = keras.Sequential([keras.Input((4,)), inner, layers.Dense(2)])
    x = _numbers(6, 4)
    model.predict(x, verbose=0), inner.predict(x, verbose=0)
    trained: Any = PipelinedModel(model, devices=2)
    model.set_weights([v + 1.0 for v in model.get_weights()])
    expected = trained.predict(x, verbose=0)
    np.testing.assert_allclose(model.predict(x, verbose=0), expected, rtol=1e-5)
    np.testing.assert_allclose(inner.predict(x, verbose=0), inner(x), rtol=1e-5)


class _Squared(layers.Layer):
    def call(self, x: Any) -> Any:
        self.add_loss(keras.ops.mean(keras.ops.square(keras.ops.cast(x, "float32"))))
        return x


def test_losses_of_layers_are_scaled_like_the_models() -> None:
    """A scale of a power of two changes no bit."""
    x, y, found = _numbers(6, 4), _numbers(6, 2), []
    for scale in (1.0, 2.0**10):
        keras.utils.set_random_seed(1)
        regularized = layers.Dense(2, kernel_regularizer="l2")
        parts = [layers.Dense(3), _Squared(), regularized]
        model = keras.Sequential([keras.Input((4,)), *parts])
        trained: Any = PipelinedModel(model, devices=2, num_micro_batches=2)
        optimizer: Any = keras.optimizers.SGD(0.1)
        if scale > 1.0:
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer, scale)
        trained.compile(optimizer, loss="mse")
        fit = trained.fit(x, y, verbose=0, shuffle=False)
        found.append([fit.history["loss"], *model.get_weights()])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_compiled_model_stays_compiled(tmp_path: Any) -> None:
    """A loaded model goes on like one that was never saved."""
    x, y, found = _numbers(6, 4), _numbers(6, 2), []
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3), layers.Dense(2)])
    never: Any = PipelinedModel(model, devices=2, num_micro_batches=2)
    never.compile("adam", loss="mae", metrics=["mse"])
    options = {"shuffle": False, "verbose": 0}
    never.fit(x, y, **options)
    never.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    resumed: Any = PipelinedModel(loaded, devices=2, num_micro_batches=2)
    for trained in (never, resumed):
        fit = trained.fit(x, y, epochs=2, **options)
        state = [v.numpy() for v in trained.optimizer.variables]
        found.append([*fit.history.values(), *state, *trained.model.get_weights()])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_compiled_model_keeps_functions_and_frozen_layers() -> None:
    """A lambda has no text form; as in Keras, a frozen layer keeps its slots."""
    model: Any = keras.Sequential([keras.Input((4,)), layers.Dense(3), layers.Dense(2)])
    loss = lambda y, z: keras.ops.mean(keras.ops.square(y - z), -1)  # noqa: E731
    model.compile("adam", loss=loss, steps_per_execution=2)
    model.fit(_numbers(6, 4), _numbers(6, 2), batch_size=3, verbose=0)
    model.layers[0].trainable = False
    before = model.layers[0].get_weights()
    trained: Any = PipelinedModel(model)
    trained.fit(_numbers(6, 4), _numbers(6, 2), verbose=0)
    for a, b in zip(before, model.layers[0].get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert len(trained.optimizer.variables) == 2 + 2 * 4


class _Centered(layers.Layer):
    def build(self, shape: Any) -> None:
        self.mean = self.add_weight(shape=(), trainable=False, name="mean")

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * keras.ops.mean(x))
        return x - self.mean


def test_what_a_layer_has_written_has_no_gradient() -> None:
    x, y, found = _numbers(6, 4), _numbers(6, 2), []
    for pipelined in (False, True):
        keras.utils.set_random_seed(1)
        parts = [layers.Dense(3), _Centered(), layers.Dense(2)]
        model = keras.Sequential([keras.Input((4,)), *parts])
        trained: Any = PipelinedModel(model, 2) if pipelined else model
        trained.compile("sgd", loss="mse")
        fit = trained.fit(x, y, epochs=3, verbose=0, shuffle=False)
        found.append([fit.history["loss"], *model.get_weights()])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_variables_may_be_added_after_compile() -> None:
    """LoRA adds some: an evaluation took them for another model's."""
    results = []
    for is_pipelined in (False, True):
        keras.utils.set_random_seed(4)
        model: Any = keras.Sequential(
            [keras.Input((4,)), layers.Dense(3), layers.Dense(2)]
        )
        trained: Any = PipelinedModel(model, devices=2) if is_pipelined else model
        trained.compile("sgd", loss="mse")
        model.layers[0].enable_lora(2)
        for v in model.layers[0].trainable_variables:
            v.assign(v + 0.1)
        x, y = _numbers(6, 4), _numbers(6, 2)
        results.append(
            [
                trained.evaluate(x, y, verbose=0),
                *trained.predict(x, verbose=0).flat,
                *trained.fit(x, y, epochs=3, verbose=0).history["loss"],
                *model.layers[0].lora_kernel_b.numpy().flat,
            ]
        )
    plain, pipelined = results
    np.testing.assert_allclose(plain, pipelined, rtol=1e-5)


def test_a_model_without_anything_to_train_is_only_evaluated() -> None:
    model: Any = keras.Sequential([keras.Input((4,)), layers.Dense(2)])
    model.trainable = False
    trained: Any = PipelinedModel(model, num_micro_batches=2)
    trained.compile("sgd", loss="mse", metrics=["mae"])
    x, y = _numbers(6, 4), _numbers(6, 2)
    history = trained.fit(x, y, verbose=0).history
    assert [history[key][0] for key in ("loss", "mae")] == pytest.approx(
        trained.evaluate(x, y, verbose=0)
    )


def test_slots_lie_beside_weights_of_the_same_path() -> None:
    """Two inner models, each with a layer of the same name."""
    x = start = keras.Input((4,))
    for _ in range(2):
        inner = keras.Input((4,))
        x = keras.Model(inner, layers.Dense(4, name="same")(inner))(x)
    model: Any = keras.Model(start, x)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss="mse")
    model.fit(_numbers(6, 4), _numbers(6, 4), verbose=0)
    trained: Any = PipelinedModel(model, devices=2)
    slots = [v for v in trained.optimizer.variables if "momentum" in v.path]
    for slot, weight in zip(slots, model.trainable_variables, strict=True):
        assert slot.value.device == weight.value.device
