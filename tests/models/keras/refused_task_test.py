"""Keras models and params that the trainer cannot follow are refused."""

from __future__ import annotations

import random
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.keras.cells.model_function import built_model, fingerprint
from lingvo_pipe.layers.core.weights import WeightInit
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.models.keras.keras_task import KerasTask
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.run.changed_params import check_changes
from tests.support.errors import fails


def plain() -> keras.Model:
    return keras.Sequential([keras.Input((3,)), layers.Dense(4)])


def constrained() -> keras.Model:
    dense = layers.Dense(2, kernel_constraint="non_neg")
    return keras.Sequential([keras.Input((3,)), dense])


def scaled() -> keras.Model:
    dense = layers.Dense(2, dtype="mixed_float16")
    return keras.Sequential([keras.Input((3,)), dense])


def of_float8() -> keras.Model:
    model = keras.Sequential([keras.Input((16,)), layers.Dense(16)])
    model.quantize("float8")
    return model


def regularized() -> keras.Model:
    inner = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
    inner.activity_regularizer = keras.regularizers.L2(0.1)
    return keras.Sequential([keras.Input((3,)), inner])


class Centers(layers.Layer):
    """Mixes examples."""

    def call(self, x: Any) -> Any:
        return x - keras.ops.mean(x, axis=0)


def centered() -> keras.Model:
    return keras.Sequential([keras.Input((3,)), layers.Dense(4), Centers(name="own")])


def frozen() -> keras.Model:
    dense = layers.Dense(4, kernel_regularizer="l2", trainable=False)
    return keras.Sequential([keras.Input((3,)), dense, layers.Dense(4)])


def unbuilt() -> keras.Model:
    return keras.Sequential([layers.Dense(2)])


def _params() -> InstantiableParams:
    loss = {"loss": "SparseCategoricalCrossentropy"}
    return KerasTask.ParamsOf(plain).Set(name="task", **loss)


def activated(activation: str) -> keras.Model:
    own = keras.layers.Lambda(lambda x: x * 2.0)
    dense = layers.Dense(2, activation=activation)
    return keras.Sequential([keras.Input((3,)), own, dense])


def test_building_a_model_leaves_pythons_random_numbers() -> None:
    state = random.getstate()
    built_model(activated, {"activation": "elu"}, 7)
    assert random.getstate() == state


def test_a_function_that_has_changed_is_noticed() -> None:
    models = [
        built_model(activated, {"activation": name}, seed).model
        for name, seed in [("relu", 1), ("relu", 2), ("tanh", 1)]
    ]
    same, again, other = map(fingerprint, models)
    assert same == again != other
    p = KerasTask.ParamsOf(activated, activation="relu")
    assert p.model_fingerprint == same
    changed = p.Copy().Set(model_fingerprint=other)
    check_changes(p.ToText(), p.Copy().ToText(), ())
    with pytest.raises(ValueError, match="model_fingerprint"):
        check_changes(p.ToText(), changed.ToText(), ())


@pytest.mark.parametrize(
    ("shape", "labels", "kind", "losses"),
    [
        ((1,), [[1], [0], [1], [1]], "binary_accuracy", ("mse", "MeanSquaredError")),
        ((3,), np.eye(4, 3), "categorical_accuracy", ("mae", "mean_absolute_error")),
        (
            (3,),
            [1, 0, 2, 1],
            "sparse_categorical_accuracy",
            ["SparseCategoricalCrossentropy", "sparse_categorical_crossentropy"],
        ),
    ],
)
def test_names_that_keras_abbreviates(
    shape: Any, labels: Any, kind: str, losses: Any
) -> None:
    outputs = tf.random.stateless_uniform([4, *shape], [1, 2])
    targets, found = (
        NestedMap(targets=tf.constant(labels, tf.float32), weights=None),
        [],
    )
    for loss, metric in zip(losses, ("accuracy", kind), strict=True):
        task = _params().Set(loss=loss, metrics=[metric]).Instantiate()
        found.append(task.ComputeLoss((outputs, None, None), targets))
    assert found[0].accuracy[0] == found[1][kind][0]
    assert found[0].loss[0] == found[1].loss[0]


@pytest.mark.parametrize(
    "model", [constrained, scaled, unbuilt, of_float8, regularized]
)
def test_models_that_the_trainer_cannot_train(model: Any) -> None:
    with pytest.raises(ValueError, match="kernel|dense|sequential"):
        KerasTask.ParamsOf(model)


@pytest.mark.parametrize(
    ("name", "value", "fields"),
    [
        ("loss", "mean_squared_eror", {"path": "task.loss"}),
        (
            "loss_arguments",
            {"reduction": "sum"},
            {"path": "task.loss_arguments['reduction']", "got": "sum"},
        ),
        ("metrics", ["AUC"], {"path": "task.metrics", "got": "AUC"}),
        ("fprop_dtype", tf.bfloat16, {}),
        ("params_init", WeightInit.Gaussian(), {}),
        ("pipeline.cell_tpl", [FCLayer.Params()], {"path": "task.pipeline.cell_tpl"}),
    ],
)
def test_params_that_do_not_fit(name: str, value: Any, fields: dict[str, Any]) -> None:
    with fails(**fields) as info:
        _params().Set(**{name: value}).Instantiate()
    assert name in str(info.value)


def test_a_loss_is_needed() -> None:
    task = _params().Set(loss=None).Instantiate()
    targets = NestedMap(targets=tf.ones([2]), weights=None)
    with fails(path="task.loss", got="None for 1 outputs"):
        task.ComputeLoss((tf.ones([2, 4]), None, None), targets)


def _batch() -> NestedMap:
    image = np.ones((4, 3), np.float32)
    label = np.array([0, 1, 2, 3], np.int32)
    return NestedMap(image=image, label=label, weight=np.ones(4, np.float32))


def test_layers_that_mix_examples_are_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    p = KerasTask.ParamsOf(centered).Set(name="task", loss="mse")
    with caplog.at_level("WARNING", "absl"):
        p.Copy().Instantiate()
        assert not caplog.records
        p.pipeline.num_micro_batches = 2
        p.Instantiate()
    assert "'own'" in caplog.text


def test_a_loss_with_one_value_for_all_examples_is_refused() -> None:
    p = KerasTask.ParamsOf(plain).Set(name="task", loss="Dice")
    for number in (1, 2):
        p.pipeline.num_micro_batches = number
        task = p.Copy().Instantiate()
        batch = _batch()
        batch.label = np.eye(4, dtype=np.float32)
        if number == 1:
            task.ComputeGradients(task.Values(), batch)
            continue
        with fails(path="task.loss"):
            task.ComputeGradients(task.Values(), batch)


def test_frozen_weights_have_no_penalty() -> None:
    p = KerasTask.ParamsOf(frozen).Set(name="task")
    p.Set(loss="SparseCategoricalCrossentropy", loss_arguments={"from_logits": True})
    task = p.Instantiate()
    metrics = task.ComputeGradients(task.Values(), _batch()).metrics
    assert "keras_losses" not in metrics
