"""Keras models and params that the trainer cannot follow are refused."""

from __future__ import annotations

from typing import Any

import keras
import pytest
import tensorflow as tf
from keras import layers

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.weights import WeightInit
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.models.keras.keras_task import KerasTask
from lingvo_pipe.nested_map import NestedMap


def plain() -> keras.Model:
    return keras.Sequential([keras.Input((3,)), layers.Dense(4)])


def constrained() -> keras.Model:
    dense = layers.Dense(2, kernel_constraint="non_neg")
    return keras.Sequential([keras.Input((3,)), dense])


def scaled() -> keras.Model:
    dense = layers.Dense(2, dtype="mixed_float16")
    return keras.Sequential([keras.Input((3,)), dense])


def unbuilt() -> keras.Model:
    return keras.Sequential([layers.Dense(2)])


def _params() -> InstantiableParams:
    loss = {"loss": "SparseCategoricalCrossentropy"}
    return KerasTask.ParamsOf(plain).Set(name="task", **loss)


@pytest.mark.parametrize("model", [constrained, scaled, unbuilt])
def test_models_that_the_trainer_cannot_train(model: Any) -> None:
    with pytest.raises(ValueError, match="kernel|dense|sequential"):
        KerasTask.ParamsOf(model)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"loss": "mean_squared_eror"}, "task.loss: .*mean_squared_error"),
        ({"loss_arguments": {"reduction": "sum"}}, "loss_arguments"),
        ({"metrics": ["SparseCategoricalAccuracy"]}, "task.metrics"),
        ({"fprop_dtype": tf.bfloat16}, "fprop_dtype"),
        ({"params_init": WeightInit.Gaussian()}, "params_init"),
        ({"pipeline.cell_tpl": [FCLayer.Params()]}, "cell_tpl"),
    ],
)
def test_params_that_do_not_fit(change: dict[str, Any], path: str) -> None:
    with pytest.raises(ValueError, match=path):
        _params().Set(**change).Instantiate()


def test_a_loss_is_needed() -> None:
    task = _params().Set(loss=None).Instantiate()
    targets = NestedMap(targets=tf.ones([2]), weights=None)
    with pytest.raises(ValueError, match=r"task\.loss"):
        task.ComputeLoss((tf.ones([2, 4]), None, None), targets)
