"""The feed-forward layer against its formula."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.dense import ActivationLayer, FeedForwardLayer


@pytest.mark.parametrize("has_bias", [False, True])
def test_it_is_two_matrices_around_an_activation(has_bias: bool) -> None:
    p = FeedForwardLayer.Params().Set(name="part", dim=3, hidden_dim=7)
    layer = p.Set(has_bias=has_bias, dtype=tf.float64).Instantiate()
    for i, variable in enumerate(layer.VariablePaths().values()):
        variable.assign(
            tf.random.stateless_normal(variable.shape, [i, 1], dtype=tf.float64)
        )
    weights = {path: v.numpy() for path, v in layer.VariablePaths().items()}
    assert len(weights) == 2 + 2 * has_bias
    x = tf.random.stateless_normal([2, 5, 3], [9, 9], dtype=tf.float64)
    hidden = x.numpy() @ weights["part/expand/w"] + weights.get("part/expand/b", 0.0)
    want = np.maximum(hidden, 0.0) @ weights["part/contract/w"]
    want = want + weights.get("part/contract/b", 0.0)
    np.testing.assert_allclose(layer(x), want, rtol=1e-10, atol=1e-12)


class _WithGate(FeedForwardLayer):
    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.CreateChild("gate", ActivationLayer.Params().Set(activation="SIGMOID"))


def test_a_child_of_a_subclass_is_not_in_the_sequence() -> None:
    p = FeedForwardLayer.Params().Set(name="layer", dim=2, hidden_dim=3)
    inputs = tf.constant([[1.0, -2.0]])
    own = _WithGate.Params().Set(name="layer", dim=2, hidden_dim=3).Instantiate()
    tf.debugging.assert_equal(own(inputs), p.Instantiate()(inputs))
