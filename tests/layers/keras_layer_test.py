"""A layer in a Keras model gives its own outputs, and learns as Keras's layers do."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.batch_norm import BatchNormLayer
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.dropout import DropoutLayer
from lingvo_pipe.layers.keras_layer import KerasLayer
from lingvo_pipe.layers.local_loss import LocalLossLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.devices import stage_devices  # noqa: F401  Asks for several.
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer

DEVICES = ["cpu:0", "cpu:1"]
X = np.random.default_rng(0).normal(size=[8, 5]).astype(np.float32)
Y = np.tanh(X[:, :3])


def _pipeline(*more: object) -> BaseLayer:
    cells = [
        FCLayer.Params().Set(input_dim=5, output_dim=7, activation="TANH"),
        *more,
        FCLayer.Params().Set(input_dim=7, output_dim=3),
    ]
    p = PipeliningLayer.Params().Set(name="pipe", cell_tpl=cells, splits=2)
    return p.Set(devices=DEVICES, num_micro_batches=2).Instantiate()


def _model(layer: BaseLayer) -> keras.Model:
    model = keras.Sequential([keras.Input([5]), KerasLayer(layer, batch_size=8)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def test_outputs_and_weights_are_the_layers() -> None:
    layer = _pipeline()
    model = _model(layer)
    np.testing.assert_allclose(model.predict(X, verbose=0), layer(X), rtol=1e-6)
    assert len(model.trainable_weights) == 4
    for weight, variable in zip(
        model.trainable_weights, layer.VariablePaths().values(), strict=True
    ):
        np.testing.assert_array_equal(weight, variable)


def test_it_is_trained_as_layers_of_keras_are() -> None:
    layer = _pipeline()
    ours = _model(layer)
    theirs = keras.Sequential(
        [keras.Input([5]), keras.layers.Dense(7, "tanh"), keras.layers.Dense(3)]
    )
    theirs.compile(keras.optimizers.SGD(0.1), "mse")
    # Both have w and b of each layer in this order, or the other way round.
    theirs.set_weights(
        [
            next(v.numpy() for v in layer.VariablePaths().values() if _fits(v, w))
            for w in theirs.weights
        ]
    )
    for model in (ours, theirs):
        model.fit(X, Y, epochs=3, batch_size=8, shuffle=False, verbose=0)
    np.testing.assert_allclose(
        ours.predict(X, verbose=0), theirs.predict(X, verbose=0), rtol=1e-5, atol=1e-6
    )
    # The layer's own variables stay as they were.
    assert not np.allclose(ours.predict(X, verbose=0), layer(X))


def _fits(variable: tf.Variable, weight: keras.Variable) -> bool:
    return tuple(variable.shape) == tuple(weight.shape)


def test_a_partial_batch_is_refused() -> None:
    # Keras raises an error of this kind with a message of its own around ours.
    with pytest.raises(UserValueError, match=r"pipe\.batch_size.*\b8\b.*\b6\b"):
        _model(_pipeline()).predict(X[:6], verbose=0)


def test_weights_are_saved_and_loaded(tmp_path: Path) -> None:
    path = str(tmp_path / "model.weights.h5")
    first = _model(_pipeline())
    first.fit(X, Y, verbose=0)
    first.save_weights(path)
    second = _model(_pipeline())
    assert not np.allclose(first.predict(X, verbose=0), second.predict(X, verbose=0))
    second.load_weights(path)
    np.testing.assert_array_equal(
        first.predict(X, verbose=0), second.predict(X, verbose=0)
    )


def test_random_numbers_change_from_step_to_step() -> None:
    dropout = DropoutLayer.Params().Set(name="dropout", keep_prob=0.5)
    layer = KerasLayer(dropout.Instantiate())
    ones = tf.ones([4, 50])
    first, second = layer(ones, training=True), layer(ones, training=True)
    assert 0 < np.count_nonzero(first) < 200
    assert np.any(np.not_equal(first, second))
    np.testing.assert_array_equal(layer(ones, training=False), ones)


def test_batch_norm_can_be_used_and_not_trained() -> None:
    layer = _pipeline(BatchNormLayer.Params().Set(dim=7))
    model = _model(layer)
    assert model.predict(X, verbose=0).shape == (8, 3)
    with pytest.raises(UserValueError, match=r"pipe: .*pipe/.*training=False"):
        model.fit(X, Y, verbose=0)
    model.layers[-1].trainable = False
    before = model.predict(X, verbose=0)
    model.compile("sgd", "mse")
    model.fit(X, Y, verbose=0)
    np.testing.assert_array_equal(model.predict(X, verbose=0), before)


def test_dtypes_are_the_layers() -> None:
    """Keras casts inputs, and weights in mixed precision, unless it is told not to."""
    p = FCLayer.Params().Set(name="dense", input_dim=5, output_dim=3)
    wide = p.Copy().Set(dtype=tf.float64).Instantiate()
    x = tf.constant(X, tf.float64) / 3.0
    np.testing.assert_array_equal(KerasLayer(wide)(x), wide(x))
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        narrow = p.Instantiate()
        np.testing.assert_array_equal(KerasLayer(narrow)(X), narrow(X))
    finally:
        keras.config.set_dtype_policy(before)


class _Reporting(BaseLayer):
    """Reports a metric."""

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        self.AddMetric("size", tf.reduce_mean(x), tf.constant(1.0))
        return x


class _Counting(_Reporting):
    def PostTrainingStepUpdate(self, accumulated: NestedMap) -> None:
        raise NotImplementedError


def test_metrics_that_keras_does_not_get_are_named_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tf.get_logger(), "propagate", True)
    layer = KerasLayer(_Reporting.Params().Set(name="reporting").Instantiate())
    for _ in range(2):
        layer(X, training=True)
    assert len([x for x in caplog.messages if "size" in x]) == 1


@pytest.mark.parametrize(
    ("params", "named"),
    [
        (_Counting.Params(), "PostTrainingStepUpdate"),
        (LocalLossLayer.Params().Set(head=_Reporting.Params()), "LocalLossLayer"),
    ],
)
def test_what_keras_cannot_train_is_refused(
    params: InstantiableParams, named: str
) -> None:
    layer = KerasLayer(params.Set(name="layer").Instantiate())
    layer(X, training=False)
    with pytest.raises(UserValueError, match=rf"layer: .*{named}.*training=False"):
        layer(X, training=True)


class _Square(BaseLayer):
    """Adds the sum of squares of an example's numbers to the loss."""

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        self.AddLoss("square", tf.reduce_sum(x**2, axis=1))
        return x


def test_losses_of_the_layer_count_as_means_of_the_batch() -> None:
    layer = KerasLayer(_Square.Params().Set(name="square").Instantiate())
    model = keras.Sequential([keras.Input([5]), layer])
    model.compile("sgd", "mse")
    loss = model.evaluate(X, X, batch_size=4, verbose=0)
    np.testing.assert_allclose(loss, np.mean(np.sum(X**2, axis=1)), rtol=1e-6)
