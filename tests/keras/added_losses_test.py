"""Losses that layers and weights add are plain Keras's, beside others or alone."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

from lingvo_pipe.testing.pipelined_equals_plain import assert_pipelined_equals_plain
from tests.keras.toy_models import (
    Wrap,
    X,
    Y,
    after_a_step,
    as_in_plain_keras,
    assert_same,
    compiled,
    fit,
    numbers,
    plain_and_pipelined,
    sequential,
)
from tests.support.cases import exhaustive


def test_penalties_are_of_what_is_trainable_when_evaluated() -> None:
    def run(wrap: Wrap) -> list[Any]:
        regularizer = keras.regularizers.L2(1.0)
        model = sequential(layers.Dense(5, kernel_regularizer=regularizer))
        trained = compiled(wrap(model))
        model.layers[0].trainable = False
        return [trained.evaluate(X, Y, verbose=0)]

    as_in_plain_keras(run)


def test_penalties_may_be_no_scalars() -> None:
    """Their mean was reported, and penalties of other shapes failed."""

    def run(wrap: Wrap) -> list[Any]:
        squares = lambda kernel: 0.01 * ops.square(kernel)  # noqa: E731
        dense = [layers.Dense(n, kernel_regularizer=squares) for n in (5, 6)]
        trained = compiled(wrap(sequential(*dense)))
        return [*after_a_step(trained), trained.evaluate(X, Y, verbose=0)]

    as_in_plain_keras(run)


def test_a_penalty_may_be_a_constant() -> None:
    def run(wrap: Wrap) -> list[Any]:
        regularizer = keras.regularizers.L1L2(0.0, 0.0)
        dense = layers.Dense(5, kernel_regularizer=regularizer)
        return after_a_step(compiled(wrap(sequential(dense))))

    as_in_plain_keras(run)


class _Squares(layers.Layer):
    """Adds a loss for each example, which Keras sums."""

    def call(self, x: Any) -> Any:
        self.add_loss(0.01 * ops.sum(ops.square(x), axis=-1))
        return x


@pytest.mark.exhaustive
def test_layers_may_add_a_loss_for_each_example() -> None:
    model = sequential(layers.Dense(5), _Squares())
    as_in_plain_keras(
        lambda wrap: after_a_step(compiled(wrap(keras.models.clone_model(model))))
    )


@pytest.mark.exhaustive
def test_a_masked_loss_and_losses_of_layers() -> None:
    """With micro-batches of unequal numbers of timesteps."""

    def run(wrap: Wrap) -> list[Any]:
        tokens = keras.Input((5,), dtype="int32")
        x = layers.Embedding(9, 4, mask_zero=True)(tokens)
        x = layers.Dense(4, activity_regularizer=keras.regularizers.L2(0.01))(x)
        trained = wrap(keras.Model(tokens, layers.Dense(9)(x)))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        trained.compile(keras.optimizers.SGD(0.1), loss=loss)
        rows = [[1, 2, 0, 0, 0], [3, 4, 5, 6, 0], [7, 0, 0, 0, 0], [8, 8, 8, 0, 0]]
        return [trained.train_on_batch(np.array(rows), np.array(rows))]

    as_in_plain_keras(run, 1, 2)


class _Means(layers.Layer):
    def call(self, x: Any) -> Any:
        self.add_loss(0.1 * ops.mean(ops.square(x)))
        return x


@pytest.mark.parametrize(
    ("layer", "scale", "stages"),
    [
        (_Squares, None, ()),
        exhaustive(_Means, None, (1, 2)),
        (_Means, None, (2, 2)),
        exhaustive(_Means, 64.0, (2, 2)),
    ],
)
def test_losses_of_layers_alone_need_no_targets(
    layer: Any, scale: float | None, stages: tuple[int, ...]
) -> None:
    """A loss of zeros had to stand beside them, with targets."""

    def run(wrap: Wrap) -> list[Any]:
        trained = wrap(sequential(layers.Dense(5), layer()))
        optimizer = keras.optimizers.SGD(0.01)
        if scale is not None:
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer, scale)
        trained.compile(optimizer)
        history = trained.fit(X, batch_size=4, shuffle=False, verbose=0).history
        loss = trained.evaluate(X, verbose=0)
        return [history["loss"], loss, *trained.get_weights()]

    as_in_plain_keras(run, *stages)


@pytest.mark.parametrize("num_examples", [14, *map(exhaustive, [11, 19, 31])])
def test_losses_of_layers_keep_each_byte(num_examples: int) -> None:
    """In float32, B gradients of 1 / B do not add up to 1 for these B."""
    results = []
    for model, trained in plain_and_pipelined(
        lambda: sequential(layers.Dense(5, activity_regularizer="l2"))
    ):
        compiled(trained)
        fit(trained, num_examples, batch_size=num_examples)
        results.append(model.get_weights())
    assert_same(results)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("floats_of_64_bits")
@pytest.mark.parametrize("losses", [["mse"], ["dice"], ["mse", "mae"]])
def test_floats_of_64_bits_keep_their_digits(losses: list[str]) -> None:
    """Losses were rounded to 32 bits, and so were the weights of micro-batches."""

    def make() -> keras.Model:
        x = keras.Input((4,))
        y = _Means()(layers.Dense(5, "tanh", kernel_regularizer="l2")(x))
        outputs = [layers.Dense(3, "sigmoid")(y) for _ in losses]
        return keras.Model(x, outputs if len(losses) > 1 else outputs[0])

    y = np.abs(numbers(20, 3))
    assert_pipelined_equals_plain(
        make,
        (numbers(20, 4), [y] * len(losses) if len(losses) > 1 else y),
        lambda: {"optimizer": keras.optimizers.SGD(0.01), "loss": losses},
        batch_size=10,
        devices=(1,),
        num_micro_batches=(1, 3),
        tolerance=1e-12,
    )
