"""Keras models by the pipeline: as by plain Keras, the same bytes for all stages."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.keras.pipelined_model import PipelinedModel
from tests.keras.example_models import MODELS
from tests.support.cases import exhaustive


class Outcome(NamedTuple):
    """Results of a training."""

    values: list[np.ndarray]
    history: dict[str, list[float]]
    evaluation: Any
    predictions: list[np.ndarray]


def _values(model: Any, trained: Any) -> list[np.ndarray]:
    variables = [*model.variables, *trained.optimizer.variables]
    return [np.asarray(v) for v in variables]


def _train(
    name: str, batch_size: int = 8, optimizer: str = "adam", **options: Any
) -> Outcome:
    """Trains a model for six steps; by plain Keras if there are no options."""
    keras.utils.set_random_seed(3)
    example = MODELS[name]()
    trained: Any = example.model
    if options:
        trained = PipelinedModel(example.model, **options)
    metrics = None if name == "shared" else ["accuracy"]
    trained.compile(optimizer, loss=example.loss, metrics=metrics)
    fit = trained.fit(
        example.x, example.y, batch_size=batch_size, epochs=3, shuffle=False, verbose=0
    )
    return Outcome(
        _values(example.model, trained),
        fit.history,
        trained.evaluate(example.x, example.y, batch_size=batch_size, verbose=0),
        keras.tree.flatten(
            trained.predict(example.x, batch_size=batch_size, verbose=0)
        ),
    )


_trained = functools.cache(_train)


def _assert_same(a: Outcome, b: Outcome) -> None:
    for x, y in zip(a.values, b.values, strict=True):
        np.testing.assert_array_equal(x, y)
    assert a.history == b.history
    assert a.evaluation == b.evaluation
    for x, y in zip(a.predictions, b.predictions, strict=True):
        np.testing.assert_array_equal(x, y)


def _assert_close(a: Outcome, b: Outcome) -> None:
    for x, y in zip(a.values, b.values, strict=True):
        if x.dtype.kind == "f":
            np.testing.assert_allclose(x, y, rtol=0, atol=2e-6)
    for key, numbers in a.history.items():
        np.testing.assert_allclose(numbers, b.history[key], rtol=1e-5)
    np.testing.assert_allclose(a.evaluation, b.evaluation, rtol=1e-5)


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


def _layout_cases() -> list[Any]:
    """Returns each model with each layout; one of them in the fast suite."""
    return [
        (name, *layout) if i == j and name == "residual" else exhaustive(name, *layout)
        for i, name in enumerate(MODELS)
        for j, layout in enumerate(_LAYOUTS)
    ]


@pytest.mark.parametrize(("name", "devices", "schedule", "recompute"), _layout_cases())
def test_bytes_do_not_depend_on_the_stages(
    name: str, devices: int, schedule: str, recompute: Any
) -> None:
    one = _trained(name, devices=1, num_micro_batches=4)
    options = {"schedule": schedule, "recompute": recompute}
    if schedule == "interleaved":
        options.update(stages_per_device=2, splits=2 * devices)
    _assert_same(one, _train(name, devices=devices, num_micro_batches=4, **options))


@pytest.mark.parametrize(
    "name", map(exhaustive, ["mlp", "residual", "transformer", "recurrent", "shared"])
)
def test_a_step_is_plain_keras_own(name: str) -> None:
    """SGD, because Keras updates embeddings by sparse rules of other optimizers."""
    plain = _trained(name, optimizer="sgd")
    _assert_close(plain, _train(name, optimizer="sgd", devices=1, num_micro_batches=1))


@pytest.mark.parametrize(
    "name", ["transformer", *map(exhaustive, ["shared", "mlp", "recurrent"])]
)
def test_dropout_does_not_depend_on_the_micro_batches(name: str) -> None:
    """Batch norm does: its moments are each micro-batch's own."""
    plain = _trained(name, optimizer="sgd")
    _assert_close(plain, _train(name, optimizer="sgd", devices=2, num_micro_batches=4))


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        ("mlp", "adam"),
        ("mlp", "muon"),  # It looks at the paths of Keras's variables.
        exhaustive("tied_transformer", "adam"),
        exhaustive("vision_transformer", "adam"),
    ],
)
def test_a_model_with_dense_gradients_is_plain_keras_bit_for_bit(
    name: str, optimizer: str
) -> None:
    _assert_same(
        _trained(name, optimizer=optimizer),
        _train(name, optimizer=optimizer, devices=2, num_micro_batches=1),
    )


@pytest.mark.parametrize(
    "name", [name if name == "residual" else exhaustive(name) for name in MODELS]
)
def test_one_step_is_plain_keras_to_a_millionth_of_the_largest_change(
    name: str,
) -> None:
    found: list[Any] = []
    layouts: list[dict[str, Any]] = [{}, {"devices": 2, "num_micro_batches": 1}]
    for options in layouts:
        keras.utils.set_random_seed(3)
        example = MODELS[name]()
        trained: Any = example.model
        if options:
            trained = PipelinedModel(example.model, **options)
        before = [v.numpy() for v in example.model.trainable_variables]
        trained.compile(keras.optimizers.SGD(1.0), loss=example.loss)
        trained.fit(example.x, example.y, batch_size=16, shuffle=False, verbose=0)
        found.append([v.numpy() for v in example.model.trainable_variables])
    change = max(np.abs(x - y).max() for x, y in zip(before, found[0], strict=True))
    for x, y in zip(*found, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-6 * change)


@pytest.mark.parametrize("name", ["mlp", *map(exhaustive, ["shared", "transformer"])])
def test_a_smaller_last_batch_is_exact(name: str) -> None:
    """11 examples over 8 micro-batches, and 5, which are fewer than these."""
    plain = _trained(name, batch_size=11, optimizer="sgd")
    found = _train(name, batch_size=11, optimizer="sgd", devices=2, num_micro_batches=8)
    for x, y in zip(plain.values, found.values, strict=True):
        if x.dtype.kind == "f":
            np.testing.assert_allclose(x, y, rtol=0, atol=2e-6)
    # Keras gives a batch of unusual size another weight in the losses of each output.
    losses = [np.ravel(each.evaluation)[0] for each in (plain, found)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


def test_predict_before_fit_and_without_compile() -> None:
    example = MODELS["residual"]()
    expected = example.model.predict(example.x, verbose=0)
    pipelined = PipelinedModel(example.model, devices=2, num_micro_batches=2)
    np.testing.assert_allclose(
        pipelined.predict(example.x, batch_size=8, verbose=0), expected, atol=1e-6
    )


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
    pipelined = PipelinedModel(MODELS["mlp"]().model, devices, number)
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


@pytest.mark.parametrize("devices", [0, exhaustive(3)])
def test_a_saved_model_goes_on_anywhere(devices: int, tmp_path: Path) -> None:
    """With the optimizer's state: in plain Keras, or on other devices."""
    model = keras.Sequential(
        [keras.Input((16,)), *(keras.layers.Dense(8, "tanh") for _ in range(3))]
    )
    data = {"x": MODELS["mlp"]().x, "y": np.ones((16, 8)), "batch_size": 8}
    options = {"shuffle": False, "verbose": 0}
    trained: Any = PipelinedModel(model, devices=2, num_micro_batches=1)
    trained.compile("adam", loss="mse")
    trained.fit(**data, **options)
    trained.save(tmp_path / "model.keras")
    trained.fit(**data, **options)

    resumed = plain = keras.models.load_model(tmp_path / "model.keras")
    assert plain.optimizer.iterations == 2
    if devices:
        resumed = PipelinedModel(plain, devices=devices, num_micro_batches=1)
        resumed.compile(plain.optimizer, loss="mse")
    resumed.fit(**data, **options)
    for x, y in zip(model.weights, plain.weights, strict=True):
        np.testing.assert_array_equal(x.numpy(), y.numpy())


def test_frozen_layers_stay_and_thawed_ones_learn() -> None:
    example = MODELS["residual"]()
    convolution = example.model.layers[1]
    convolution.trainable = False
    pipelined = PipelinedModel(example.model, devices=2, num_micro_batches=2)
    before = convolution.get_weights()[0]
    for trainable in (False, True):
        convolution.trainable = trainable
        pipelined.compile("sgd", loss=example.loss)
        pipelined.fit(example.x, example.y, batch_size=8, verbose=0)
        assert np.array_equal(before, convolution.get_weights()[0]) is not trainable


def test_class_and_sample_weights_are_kerass() -> None:
    weights = {"class_weight": {0: 0.5, 1: 2.0, 2: 1.0, 3: 0.1, 4: 3.0}}
    found = []
    layouts: list[dict[str, Any]] = [{}, {"devices": 2, "num_micro_batches": 4}]
    for options in layouts:
        keras.utils.set_random_seed(3)
        example = MODELS["mlp"]()
        trained: Any = example.model
        if options:
            trained = PipelinedModel(example.model, **options)
        trained.compile("sgd", loss=example.loss)
        fit = trained.fit(
            example.x, example.y, batch_size=8, shuffle=False, verbose=0, **weights
        )
        found.append((fit.history["loss"], example.model.get_weights()))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-6)
    for x, y in zip(found[0][1], found[1][1], strict=True):
        np.testing.assert_allclose(x, y, atol=2e-6)


@pytest.mark.parametrize("bad", ["token", "label"])
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


@pytest.mark.parametrize("is_sequential", [False, True])
def test_callbacks_see_the_plain_models_layers(is_sequential: bool) -> None:
    first, second = keras.layers.Dense(4, name="first"), keras.layers.Dense(3)
    x = keras.Input((5,))
    model: Any = keras.Model(x, second(first(x)))
    if is_sequential:
        model = keras.Sequential([x, first, second])
    trained, found = PipelinedModel(model, devices=2), []

    def note(*_: Any) -> None:
        found.append(callback.model)

    callback = keras.callbacks.LambdaCallback(on_train_begin=note)
    trained.compile("sgd", loss="mse")
    trained.fit(np.ones((4, 5)), np.ones((4, 3)), callbacks=[callback], verbose=0)
    (seen,) = found
    assert seen.layers == model.layers
    assert seen.get_layer("first") is first
    assert (seen.input_shape, seen.output_shape) == ((None, 5), (None, 3))
    assert (seen.inputs, seen.outputs) == (model.inputs, model.outputs)
    assert len(seen.weights) == len(model.weights)
