"""Keras models by the pipeline: as by plain Keras, the same bytes for all stages."""

from __future__ import annotations

import functools
import itertools
import re
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from lingvo_pipe.keras.pipelined_model import PipelinedModel
from lingvo_pipe.pipeline.schedules.schedule import Kind
from lingvo_pipe.testing.pipelined_equals_plain import assert_pipelined_equals_plain
from tests.keras.example_models import MODELS
from tests.keras.toy_models import (
    assert_close,
    assert_same,
    fit,
    numbers,
    plain_and_pipelined,
    sequential,
)
from tests.support.cases import exhaustive, fast_cases


def _train(
    name: str, batch_size: int = 8, optimizer: str = "adam", **options: Any
) -> tuple[list[Any], list[Any], list[Any]]:
    """Trains a model for six steps, by plain Keras if there are no options.

    Returns variables, losses and metrics, and predictions.
    """
    keras.utils.set_random_seed(3)
    model, x, y, loss = MODELS[name]()
    trained: Any = PipelinedModel(model, **options) if options else model
    metrics = None if name == "shared" else ["accuracy"]
    trained.compile(optimizer, loss=loss, metrics=metrics)
    batches: Any = {"batch_size": batch_size, "verbose": 0}
    history = trained.fit(x, y, epochs=3, shuffle=False, **batches).history
    evaluation = trained.evaluate(x, y, **batches)
    predictions = keras.tree.flatten(trained.predict(x, **batches))
    variables = [
        np.asarray(v) for v in (*model.variables, *trained.optimizer.variables)
    ]
    return variables, [evaluation, *history.values()], predictions


_trained = functools.cache(_train)


_LAYOUTS = [
    (2, "1f1b", None),
    (4, "zero_bubble", None),
    (3, "gpipe", "never"),
    (4, "1f1b", "except_last"),
    (2, "interleaved", "always"),
    (4, "gpipe", "always"),
    (2, "zero_bubble", "never"),
    (2, "interleaved", "except_last"),
    (4, "1f1b", "never"),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "devices", "schedule", "recompute"),
    # One layout for each model: transparency_test tests all of them.
    [(x, *layout) for x, layout in zip(MODELS, itertools.cycle(_LAYOUTS))],
)
def test_bytes_do_not_depend_on_the_stages(
    name: str, devices: int, schedule: str, recompute: Any
) -> None:
    one = _trained(name, devices=1, num_micro_batches=4)
    options = {"schedule": schedule, "recompute": recompute}
    if schedule == "interleaved":
        options.update(stages_per_device=2, splits=2 * devices)
    other = _train(name, devices=devices, num_micro_batches=4, **options)
    assert_same([sum(one, []), sum(other, [])])


def test_offloaded_steps_are_the_same_bytes() -> None:
    results = []
    settings: list[dict[str, Any]] = [{}, {"offload": "always"}]
    for options in settings:
        keras.utils.set_random_seed(3)
        trained: Any = PipelinedModel(sequential(layers.Dense(5)), 2, 4, **options)
        trained.compile("adam", loss="mse")
        results.append([fit(trained)["loss"], *trained.get_weights()])
        kinds = trained.pipeline.schedule.kinds
        assert (Kind.OFFLOAD in kinds) is bool(options)
    assert_same(results)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["mlp", "transformer", "shared", "recurrent"])
def test_steps_are_plain_keras_own(name: str) -> None:
    """SGD, because Keras updates embeddings by sparse rules of other optimizers."""
    plain = _trained(name, optimizer="sgd")
    found = _train(name, optimizer="sgd", devices=2, num_micro_batches=4)
    assert_close([plain[0], found[0]], atol=2e-6)
    assert_close([plain[1], found[1]])


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        exhaustive("mlp", "adam"),
        exhaustive("mlp", "muon"),  # It looks at the paths of Keras's variables.
        exhaustive("tied_transformer", "adam"),
        exhaustive("vision_transformer", "adam"),
    ],
)
def test_a_model_with_dense_gradients_is_plain_keras_bit_for_bit(
    name: str, optimizer: str
) -> None:
    plain = _trained(name, optimizer=optimizer)
    found = _train(name, optimizer=optimizer, devices=2, num_micro_batches=1)
    assert_same([sum(plain, []), sum(found, [])])


@pytest.mark.parametrize("name", fast_cases(MODELS, ["residual"]))
def test_one_step_is_plain_keras_to_a_millionth_of_the_largest_change(
    name: str,
) -> None:
    weights, changes = [], []
    _, x, y, loss = MODELS[name]()
    for model, trained in plain_and_pipelined(lambda: MODELS[name]().model, devices=2):
        before = [v.numpy() for v in model.trainable_variables]
        trained.compile(keras.optimizers.SGD(1.0), loss=loss)
        trained.fit(x, y, batch_size=16, shuffle=False, verbose=0)
        weights.append([v.numpy() for v in model.trainable_variables])
        pairs = zip(before, weights[0], strict=True)
        changes.append(max(np.abs(a - b).max() for a, b in pairs))
    assert_close(weights, rtol=0, atol=1e-6 * changes[0])


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["mlp", "shared", "transformer"])
def test_a_smaller_last_batch_is_exact(name: str) -> None:
    """11 examples over 8 micro-batches, and 5, which are fewer than these."""
    plain = _trained(name, batch_size=11, optimizer="sgd")
    found = _train(name, batch_size=11, optimizer="sgd", devices=2, num_micro_batches=8)
    assert_close([plain[0], found[0]], atol=2e-6)
    # Keras gives a batch of unusual size another weight in the losses of each output.
    assert_close([np.ravel(x[1][0])[:1] for x in (plain, found)])


def test_no_shape_makes_tensorflow_warn_of_retracing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = keras.Sequential([keras.Input((None, 2)), keras.layers.Dense(1)])
    pipelined = PipelinedModel(model)
    with caplog.at_level("WARNING", "tensorflow"):
        for length in range(1, 6):  # TensorFlow warns at the fifth.
            pipelined.predict(np.ones((2, length, 2)), verbose=0)
    assert not caplog.records


@pytest.mark.parametrize(("devices", "number"), [(1, 1), (2, 2), (2, 1)])
def test_stages_that_wait_for_one_another_are_reported(
    devices: int, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    pipelined = PipelinedModel(sequential(layers.Dense(5)), devices, number)
    with caplog.at_level("WARNING", "absl"):
        pipelined.compile("sgd", loss="mse")
    assert bool(caplog.records) is (devices > number)


def test_the_summary_shows_cells_by_device() -> None:
    model = MODELS["shared"]().model
    lines: list[str] = []
    PipelinedModel(model, devices=2).summary(print_fn=lines.append)
    rows = [re.split(r"\s{2,}", line) for line in lines[2:-1]]
    places = [[str(i // 3), f"cpu:{i // 3}", str(i)] for i in range(6)]
    assert [row[:3] for row in rows] == places
    named = {name for row in rows for name in row[3].split(", ")}
    whole = [x for x in model.layers if not isinstance(x, keras.Sequential)]
    assert {x.name for x in whole if x.weights} <= named
    assert sum(int(row[4]) for row in rows) == model.count_params()
    assert f" {model.count_params()} " in lines[-1]


def test_frozen_layers_stay_and_thawed_ones_learn() -> None:
    model = sequential(layers.Dense(5), layers.LayerNormalization())
    first = model.layers[0]
    first.trainable = False
    pipelined = PipelinedModel(model, devices=2, num_micro_batches=2)
    before = first.get_weights()[0]
    for trainable in (False, True):
        first.trainable = trainable
        pipelined.compile("sgd", loss="mse")
        fit(pipelined)
        assert np.array_equal(before, first.get_weights()[0]) is not trainable


def test_class_weights_are_kerass() -> None:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    assert_pipelined_equals_plain(
        lambda: sequential(layers.Dense(5, activation="tanh")),
        (numbers(16, 4), np.arange(16) % 3),
        {"optimizer": "sgd", "loss": loss},
        {"class_weight": {0: 0.5, 1: 2.0, 2: 0.1}},
        devices=(2,),
        num_micro_batches=(4,),
    )


@pytest.mark.parametrize("bad", [exhaustive("token"), "label"])
def test_bad_data_are_found_in_their_layer_and_micro_batch(bad: str) -> None:
    x, y = np.ones((6, 4), "int32"), np.ones(6, "int32")
    (x if bad == "token" else y)[5] = 77
    embedding = keras.layers.Embedding(9, 5, name="embedding")
    parts = [embedding, keras.layers.Flatten(), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((4,), dtype="int32"), *parts])
    trained: Any = PipelinedModel(model, devices=2, num_micro_batches=3)
    trained.compile("sgd", keras.losses.SparseCategoricalCrossentropy(True))
    owner = {"token": r"pipeline/embedding \(stage 0\)", "label": r"the loss \(stage 1"}
    calls = [lambda: trained.fit(x, y, verbose=0, shuffle=False)]
    calls.append(lambda: trained.evaluate(x, y, verbose=0))
    if bad == "token":
        calls.append(lambda: trained.predict(x, verbose=0))
    for call in calls:
        with pytest.raises(
            tf.errors.InvalidArgumentError,
            match=f"(?s){owner[bad]}.*micro-batch 2.* 77 ",
        ):
            call()


@pytest.mark.parametrize("is_sequential", [False, exhaustive(True)])
def test_callbacks_see_the_plain_models_layers(is_sequential: bool) -> None:
    model = sequential(layers.Dense(5, name="first"))
    if not is_sequential:
        model = keras.Model(model.inputs, model.outputs)
    trained, seen = PipelinedModel(model, devices=2), []
    callback: Any = keras.callbacks.LambdaCallback(
        on_train_begin=lambda logs: seen.append(callback.model)
    )
    trained.compile("sgd", loss="mse")
    fit(trained, callbacks=[callback])
    assert seen[0].layers == model.layers
    assert seen[0].get_layer("first") is model.get_layer("first")
    assert (seen[0].input_shape, seen[0].output_shape) == ((None, 4), (None, 3))
    assert (seen[0].inputs, seen[0].outputs) == (model.inputs, model.outputs)
    if not is_sequential:
        assert (seen[0].input, seen[0].output) == (model.input, model.output)
    assert len(seen[0].weights) == len(model.weights)
