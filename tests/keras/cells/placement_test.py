"""Deferred models take no memory, and become what they would have been at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from lingvo_pipe.keras.cells.placement import deferred_variables
from lingvo_pipe.keras.cells.private_names import stored_variable
from lingvo_pipe.keras.pipelined_model import PipelinedModel
from tests.keras.example_models import MODELS, Example
from tests.keras.toy_models import assert_close, assert_same, fit, sequential
from tests.support.cases import exhaustive


def _resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def test_building_takes_a_small_part_of_the_models_bytes() -> None:
    before = _resident_bytes()
    with deferred_variables():
        wide = [layers.Dense(10_000, name=f"dense{i}") for i in range(10)]
        model = keras.Sequential([keras.Input((10_000,)), *wide])
    with keras.StatelessScope():
        pass  # After it, Keras makes the variables that it knows of.
    num_bytes = 4 * model.count_params()
    assert num_bytes > 4e9
    assert _resident_bytes() - before < num_bytes / 40


def _train(defer: bool, name: str) -> tuple[Example, Any, list[np.ndarray]]:
    keras.utils.set_random_seed(7)
    if defer:
        with deferred_variables():
            example = MODELS[name]()
        assert all(stored_variable(v) is None for v in example.model.variables)
    else:
        example = MODELS[name]()
    pipelined = PipelinedModel(example.model, devices=2, num_micro_batches=2)
    initial = [v.numpy() for v in example.model.variables]
    pipelined.compile("adam", loss=example.loss)
    pipelined.fit(example.x, example.y, batch_size=8, verbose=0)
    return example, pipelined, initial


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["mlp", "residual", "recurrent"])
def test_values_and_training_are_the_same(name: str) -> None:
    (at_once, _, begin), (deferred, pipelined, start) = (
        _train(defer, name) for defer in (False, True)
    )
    assert_same([begin, start])
    assert_same([at_once.model.weights, deferred.model.weights])
    devices = {v.value.device for v in pipelined.trainable_variables}
    assert devices == set(pipelined.pipeline.devices)
    slots = {v.value.device for v in pipelined.optimizer.variables if v.shape.rank}
    assert slots == devices


def test_metrics_that_are_attributes_are_made() -> None:
    """Before the first step, they could not be reset."""
    with deferred_variables():
        within = layers.Dense(5)
        within.rows = keras.metrics.Sum(name="rows")
        model = sequential(within)
        model.steps = keras.metrics.Sum(name="steps")
    pipelined = PipelinedModel(model, devices=2)
    pipelined.compile("sgd", loss="mse")
    history = fit(pipelined)
    assert history["rows"] == history["steps"] == [0.0]


def test_weights_are_loaded_to_the_stages_devices(tmp_path: Path) -> None:
    plain = MODELS["residual"]().model
    plain.save_weights(tmp_path / "model.weights.h5")
    with deferred_variables():
        model = MODELS["residual"]().model
    pipelined = PipelinedModel(model, devices=2)
    pipelined.load_weights(tmp_path / "model.weights.h5")
    assert_same([model.weights, plain.weights])
    assert len({v.value.device for v in model.weights}) == 2


class NotingDevices(keras.optimizers.Adam):
    """Notes on which device each variable is updated."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        self.found[variable.name] = tf.identity(gradient).device, variable.device
        super().update_step(gradient, variable, learning_rate)


@pytest.mark.parametrize(
    "wrapper", ["MultiOptimizer", *map(exhaustive, ["", "LossScaleOptimizer"])]
)
def test_each_variable_is_updated_on_its_stages_device(wrapper: str) -> None:
    """Keras names no device: all gradients went to the first one."""
    if wrapper and not hasattr(keras.optimizers, wrapper):
        pytest.skip(f"This Keras has no {wrapper}.")
    optimizer = NotingDevices()
    optimizer.found = {}
    pipelined = PipelinedModel(_small(), devices=2, num_micro_batches=2)
    outer: Any = optimizer
    if wrapper == "LossScaleOptimizer":
        outer = keras.optimizers.LossScaleOptimizer(optimizer)
    elif wrapper:
        outer = keras.optimizers.MultiOptimizer(lambda _: optimizer)
    pipelined.compile(outer, loss="mse")
    fit(pipelined)
    assert pipelined.optimizer is outer
    assert len(optimizer.found) == len(pipelined.trainable_variables)
    assert all(where == device for where, device in optimizer.found.values())
    assert len(set(optimizer.found.values())) == 2


def _small() -> Any:
    return sequential(layers.Dense(8))


def _loaded(path: Path) -> Any:
    return keras.models.load_model(path / "model.keras", compile=False)


def _with_weights(path: Path) -> Any:
    model = _small()
    model.load_weights(path / "model.weights.h5")
    return model


def _with_arrays(path: Path) -> Any:
    model = _small()
    model.set_weights(_with_weights(path).get_weights())
    return model


@pytest.mark.parametrize("make", [_loaded, _with_weights, exhaustive(_with_arrays)])
def test_weights_that_are_given_while_deferred_are_kept(
    make: Callable[[Path], keras.Model], tmp_path: Path
) -> None:
    """They were dropped: the model began with random numbers."""
    trained, other = _small(), _small()
    trained.compile("adam", loss="mse")
    trained.optimizer.build(trained.trainable_variables)
    trained.set_weights([x + 1.0 for x in trained.get_weights()])
    trained.save(tmp_path / "model.keras")
    trained.save_weights(tmp_path / "model.weights.h5")
    with deferred_variables():
        model = make(tmp_path)
        other.load_weights(tmp_path / "model.weights.h5")  # It is not deferred.
    pipelined: Any = PipelinedModel(model, devices=2)
    for given in (pipelined, other):
        assert_same([trained.get_weights(), given.get_weights()])
    assert model.layers[-1].kernel.value.device.endswith("CPU:1")


def test_what_is_set_takes_the_hosts_memory_once() -> None:
    """A tensor that was made of an array used to hold the array as well."""
    size = 4096  # So large an array goes back to the system once it is freed.
    before = _resident_bytes()
    with deferred_variables():
        wide = [layers.Dense(size, use_bias=False) for _ in range(4)]
        model = keras.Sequential([keras.Input((size,)), *wide])
        model.set_weights([np.ones((size, size), "float32") for _ in wide])
    assert _resident_bytes() - before < 1.5 * 4 * model.count_params()


def _compiled() -> Any:
    keras.utils.set_random_seed(2)
    model = _small()
    metrics = [keras.metrics.RootMeanSquaredError()]
    model.compile(keras.optimizers.Adam(0.1), loss="mse", metrics=metrics)
    return model


def test_a_model_is_compiled_while_it_is_deferred() -> None:
    """Variables that have values at once were refused, such as an optimizer's."""
    with deferred_variables():
        model = _compiled()
    histories = [fit(x) for x in (_compiled(), PipelinedModel(model, devices=2))]
    assert_close([[*x.values()] for x in histories])


def test_slots_of_an_optimizer_cannot_be_deferred(tmp_path: Path) -> None:
    model = _compiled()
    model.save(tmp_path / "model.keras")
    with pytest.raises(AttributeError) as error, deferred_variables():
        keras.models.load_model(tmp_path / "model.keras")
    assert any("compile=False" in note for note in error.value.__notes__)


@pytest.mark.parametrize("limit", [None, exhaustive(100_000)])
def test_stages_of_deferred_models_are_chosen(limit: int | None) -> None:
    """To measure layers, each of them is made, with variables that are not stored."""
    with deferred_variables():
        model = _small()
    size = None if limit is None else 6
    pipelined = PipelinedModel(
        model, devices=2, splits="auto", memory_limit=limit, batch_size=size
    )
    assert pipelined.pipeline.boundaries == [1, 2]
    assert len({v.value.device for v in model.weights}) == 2
