"""State besides weights follows plain Keras's: seeds, averages, storage, slots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from lingvo_pipe.keras.pipelined_model import PipelinedModel
from lingvo_pipe.pipeline.stage_choice.memory_limit import DoesNotFitError
from tests.keras.toy_models import (
    Block,
    Sampling,
    assert_close,
    assert_same,
    fit,
    numbers,
    plain_and_pipelined,
    sequential,
)
from tests.support.cases import exhaustive
from tests.support.errors import fails


@pytest.mark.exhaustive
def test_draws_of_evaluations_are_plain_keras_own() -> None:
    """Each example and each mini-batch has its own numbers, for any M."""
    x, y, results = numbers(10, 4), numbers(10, 2), []

    def make() -> keras.Model:
        shared, inputs = Sampling(), keras.Input((4,))
        z = shared(layers.Dense(5)(shared(layers.Dense(4)(inputs))))
        return keras.Model(inputs, layers.Dense(2)(layers.Dropout(0.3)(z)))

    for model, trained in plain_and_pipelined(make, 2, 3):
        trained.compile("sgd", loss="mse")
        options = {"batch_size": 6, "verbose": 0}
        found = [trained.predict(x, **options), trained.evaluate(x, y, **options)]
        trained.fit(x, y, shuffle=False, **options)
        results.append([*found, *model.variables])
    assert_close(results)


@pytest.mark.parametrize(
    ("masks", "number"),
    [(True, 5), *[exhaustive(*x) for x in [(False, 1), (True, 1), (False, 5)]]],
)
def test_averages_are_the_mini_batchs(masks: bool, number: int) -> None:
    """Micro-batches have different numbers of valid timesteps."""
    x, results = numbers(12, 5, 4), []
    for i, row in enumerate(x):
        row[1 + i % 5 :] = 0.0

    def make() -> keras.Model:
        before = [layers.Masking()] if masks else []
        norm = layers.BatchNormalization(momentum=0.5)
        return keras.Sequential([keras.Input((5, 4)), *before, norm, layers.Dense(2)])

    for model, trained in plain_and_pipelined(make, num_micro_batches=number):
        trained.compile("sgd", loss="mse")
        trained.fit(x, np.ones((12, 5, 2)), batch_size=12, shuffle=False, verbose=0)
        results.append(model.non_trainable_variables)
    assert_close(results)


def _frozen() -> Any:
    norm = layers.BatchNormalization(scale=False, center=False, trainable=False)
    return sequential(layers.Dense(3), norm)


@pytest.mark.parametrize(
    "make",
    [
        _frozen,
        exhaustive(lambda: sequential(layers.BatchNormalization(momentum=1.0))),
        lambda: sequential(Block()),
    ],
    ids=["frozen", "momentum 1", "inside"],
)
def test_averages_of_any_normalization(make: Any) -> None:
    results = []
    for model, trained in plain_and_pipelined(make, num_micro_batches=3):
        trained.compile("sgd", loss="mse")
        fit(trained)
        results.append(model.non_trainable_variables)
    assert_close(results)


class _Squared(layers.Layer):
    def call(self, x: Any) -> Any:
        self.add_loss(keras.ops.mean(keras.ops.square(keras.ops.cast(x, "float32"))))
        return x


def test_losses_of_layers_are_scaled_like_the_models() -> None:
    """A scale of a power of two changes no bit."""
    results = []
    for scale in (1.0, 2.0**10):
        keras.utils.set_random_seed(1)
        regularized = layers.Dense(4, kernel_regularizer="l2")
        model = sequential(regularized, _Squared())
        trained: Any = PipelinedModel(model, devices=2, num_micro_batches=2)
        optimizer: Any = keras.optimizers.SGD(0.1)
        if scale > 1.0:
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer, scale)
        trained.compile(optimizer, loss="mse")
        results.append([fit(trained)["loss"], *model.get_weights()])
    assert_same(results)


def test_the_scale_keeps_small_gradients_of_half_precision() -> None:
    """Gradients of 1e-8 are 0 in float16."""
    x = keras.Input((3,))
    hidden = layers.Dense(4, dtype="mixed_float16")(x)
    model = keras.Model(x, layers.Dense(2, dtype="mixed_float16")(hidden))
    trained: Any = PipelinedModel(model, num_micro_batches=2)
    before = model.get_weights()
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1e6), 2.0**14)
    trained.compile(optimizer, loss=lambda y, z: 1e-8 * keras.ops.mean(z * z, -1))
    trained.fit(np.ones((4, 3)), np.ones((4, 2)), batch_size=4, verbose=0)
    assert np.all(before[0] != model.get_weights()[0])


@pytest.mark.parametrize("devices", [exhaustive(0), 2, exhaustive(1)])
def test_a_saved_model_stays_compiled(devices: int, tmp_path: Path) -> None:
    """In plain Keras or on other devices, it goes on like one never saved."""
    never: Any = PipelinedModel(sequential(layers.Dense(4)), 2)
    never.compile("adam", loss="mae", metrics=["mse"])
    fit(never)
    never.save(tmp_path / "model.keras")
    resumed = loaded = keras.models.load_model(tmp_path / "model.keras")
    if devices:
        resumed = PipelinedModel(loaded, devices)
    results = []
    for trained in (never, resumed):
        history = fit(trained, epochs=2)
        state = [v.numpy() for v in trained.optimizer.variables]
        results.append([*history.values(), *state, *trained.get_weights()])
    assert_same(results)


def test_a_compiled_model_keeps_functions_and_frozen_layers() -> None:
    """A lambda has no text form; as in Keras, a frozen layer keeps its slots."""
    model = sequential(layers.Dense(3))
    loss = lambda y, z: keras.ops.mean(keras.ops.square(y - z), -1)  # noqa: E731
    model.compile("adam", loss=loss, steps_per_execution=2)
    fit(model, batch_size=3)
    model.layers[0].trainable = False
    before = model.layers[0].get_weights()
    trained = PipelinedModel(model)
    fit(trained)
    assert_same([before, model.layers[0].get_weights()])
    assert len(trained.optimizer.variables) == 2 + 2 * 4


class _Centered(layers.Layer):
    def build(self, shape: Any) -> None:
        self.mean = self.add_weight(shape=(1, 1), trainable=False, name="mean")

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * keras.ops.mean(x))
        return x - self.mean


class _CenteredSix(_Centered):
    """It cannot be traced in training for other numbers of examples."""

    def call(self, x: Any, training: bool = False) -> Any:
        assert x.shape[0] == 6 or not training
        return super().call(x, training)


@pytest.mark.parametrize("centered", [exhaustive(_Centered), _CenteredSix])
def test_what_a_layer_has_written_has_no_gradient(centered: Any) -> None:
    results = []
    for model, trained in plain_and_pipelined(
        lambda: sequential(layers.Dense(3), centered()), devices=2
    ):
        trained.compile("sgd", loss="mse", run_eagerly=trained is model)
        results.append([fit(trained, epochs=3)["loss"], *model.get_weights()])
    assert_same(results)


class _Products(layers.Layer):
    """Three kernels in one cell."""

    def build(self, shape: Any) -> None:
        self.products = [layers.Dense(64) for _ in range(3)]
        for product in self.products:
            product.build((None, 64))

    def call(self, x: Any) -> Any:
        for product in self.products:
            x = product(x)
        return x


def _with_lora(dtype: str) -> keras.Model:
    model = keras.Sequential([keras.Input((64,)), _Products()])
    if dtype == "int8":
        model.quantize("int8")
    for product in model.layers[0].products:
        product.enable_lora(2)
    return model


@pytest.mark.exhaustive
def test_a_quantized_model_needs_less_memory() -> None:
    """Its kernels were summed in float64, as if the layers had written them."""
    limits = []
    for dtype in ("int8", "float32"):
        with pytest.raises(DoesNotFitError) as error:
            PipelinedModel(
                _with_lora(dtype), splits="auto", batch_size=4, memory_limit=1
            )
        limits.append(error.value.smallest_limit)
    assert limits[0] < limits[1]
    results = []
    for model, trained in plain_and_pipelined(lambda: _with_lora("int8")):
        trained.compile("sgd", loss="mse", jit_compile=False)
        results.append([fit(trained)["loss"], *model.get_weights()])
    assert_same(results)


def test_variables_may_be_added_after_compile() -> None:
    """LoRA adds some: an evaluation took them for another model's."""
    results, data = [], (numbers(6, 4), numbers(6, 3))
    for model, trained in plain_and_pipelined(
        lambda: sequential(layers.Dense(3)), devices=2
    ):
        trained.compile("sgd", loss="mse")
        model.layers[0].enable_lora(2)
        for v in model.layers[0].trainable_variables:
            v.assign(v + 0.1)
        found = [trained.evaluate(*data, verbose=0), trained.predict(data[0])]
        found.append(fit(trained, epochs=3)["loss"])
        results.append([*found, model.layers[0].lora_kernel_b.numpy()])
    assert_close(results)


def test_a_model_without_anything_to_train_is_only_evaluated() -> None:
    model = sequential()
    model.trainable = False
    trained: Any = PipelinedModel(model, num_micro_batches=2)
    trained.compile("sgd", loss="mse", metrics=["mae"])
    history = fit(trained)
    assert [history[key][0] for key in ("loss", "mae")] == pytest.approx(
        trained.evaluate(numbers(6, 4), numbers(6, 3), verbose=0)
    )


def test_slots_lie_beside_weights_of_the_same_path() -> None:
    """Two inner models, each with a layer of the same name."""
    x = start = keras.Input((4,))
    for _ in range(2):
        inner = keras.Input((4,))
        x = keras.Model(inner, layers.Dense(4, name="same")(inner))(x)
    model: Any = keras.Model(start, x)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss="mse")
    fit(model)
    trained: Any = PipelinedModel(model, devices=2)
    slots = [v for v in trained.optimizer.variables if "momentum" in v.path]
    for slot, weight in zip(slots, model.trainable_variables, strict=True):
        assert slot.value.device == weight.value.device


class _Counts(layers.Layer):
    """Counts its calls, in evaluations too unless told otherwise."""

    def __init__(self, only_in_training: bool) -> None:
        super().__init__(name="own")
        self._only_in_training = only_in_training
        self.calls = self.add_weight(shape=(), trainable=False, name="calls")

    def call(self, x: Any, training: bool | None = None) -> Any:
        if training or not self._only_in_training:
            self.calls.assign_add(1.0)
        return x * 2.0


@pytest.mark.parametrize("only_in_training", [False, True])
def test_a_layer_that_assigns_in_evaluations_is_warned_of(
    only_in_training: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its weight was another one than in plain Keras after a fit with validation."""
    model = keras.Sequential([keras.Input((5,)), _Counts(only_in_training)])
    with caplog.at_level("WARNING", "absl"):
        PipelinedModel(model)
    assert ["'own' assigns" in record.getMessage() for record in caplog.records] == [
        True
    ] * (not only_in_training)


class _Reads(layers.Layer):
    """Reads the count of another layer."""

    def __init__(self, counts: _Counts) -> None:
        super().__init__()
        self.counts = counts

    def call(self, x: Any) -> Any:
        return x + self.counts.calls


@pytest.mark.parametrize("reads", [False, True])
def test_a_state_in_two_cells_is_refused(reads: bool) -> None:
    """The last cell's value was stored, even if another cell had counted."""
    counts = _Counts(only_in_training=True)
    x = keras.Input((5,))
    hidden = layers.Dense(5)(counts(layers.Dense(5)(x)))
    again: Any = _Reads(counts) if reads else counts
    trained: Any = PipelinedModel(keras.Model(x, again(hidden)))
    trained.compile("sgd", loss="mse")
    with fails(path=f"variable {counts.calls.path!r}"):
        trained.fit(np.ones((4, 5)), np.ones((4, 5)), verbose=0)


def test_a_smaller_batch_of_a_time_major_model_is_refused() -> None:
    x = keras.Input((7, 4))
    turned = keras.ops.transpose(layers.Dense(4)(x), (1, 0, 2))
    model = keras.Model(x, keras.ops.transpose(layers.Dense(4)(turned), (1, 0, 2)))
    trained: Any = PipelinedModel(model, num_micro_batches=4)
    trained.compile("sgd", loss="mse")
    data = np.ones((26, 7, 4))
    with fails(path="a value of shape [7, None, 4] between two cells"):
        trained.fit(data, data, batch_size=16, verbose=0)
