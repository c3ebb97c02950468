"""Averages of a batch normalization that does not move them in training."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.keras.pipelined_model import PipelinedModel
from tests.keras.toy_models import assert_close, fit, plain_and_pipelined, sequential
from tests.support.cases import exhaustive


class _Backbone(layers.Layer):
    """Normalizes by the averages in training, too, as for fine-tuning."""

    def __init__(self, reads: bool = False) -> None:
        super().__init__()
        self.norm, self.reads = layers.BatchNormalization(momentum=0.9), reads

    def build(self, shape: Any) -> None:
        self.norm.build(shape)
        self.norm.moving_mean.assign(np.arange(shape[-1]))

    def call(self, x: Any, training: bool = False) -> Any:
        if self.reads:
            return self.norm(x, training=training) + self.norm.moving_mean
        return self.norm(x, training=False)


@pytest.mark.parametrize("num_micro_batches", [exhaustive(1), 2])
def test_averages_that_a_layer_only_reads_stay(num_micro_batches: int) -> None:
    """Once they were read as 0, and shrank."""
    results = []
    for model, trained in plain_and_pipelined(
        lambda: sequential(_Backbone()), 1, num_micro_batches
    ):
        trained.compile(keras.optimizers.SGD(0.01), loss="mse")
        results.append([fit(trained)["loss"], *model.get_weights()])
    assert_close(results)


def test_averages_that_a_layer_reads_and_moves_are_refused() -> None:
    trained: Any = PipelinedModel(sequential(_Backbone(reads=True)))
    trained.compile("sgd", loss="mse")
    with pytest.raises(UserValueError, match="moving_mean"):
        fit(trained)


def test_the_momentum_may_change_after_a_compile() -> None:
    """Averages were once moved by the old one."""
    results = []
    for model, trained in plain_and_pipelined(
        lambda: sequential(layers.BatchNormalization(momentum=0.9)), 1
    ):
        trained.compile(keras.optimizers.SGD(0.01), loss="mse")
        model.layers[0].momentum = 0.5
        results.append([fit(trained)["loss"], *model.get_weights()])
    assert_close(results)
