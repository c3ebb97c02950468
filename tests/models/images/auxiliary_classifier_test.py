"""An auxiliary classifier has a loss and changes nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.softmax_cross_entropy import softmax_cross_entropy
from lingvo_pipe.models.images.auxiliary_classifier import AuxiliaryClassifierLayer
from tests.support.errors import fails


def _inputs() -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns features, labels and weights."""
    features = tf.random.stateless_normal([4, 2], [1, 2])
    return features, tf.constant([1, 0, 2, 1]), tf.constant([1.0, 1.0, 0.0, 2.0])


def _layer(**params: Any) -> Any:
    classifier = FCLayer.Params().Set(input_dim=2, output_dim=3)
    p = AuxiliaryClassifierLayer.Params().Set(name="side", classifier=classifier)
    return p.Set(**params).Instantiate()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_that_of_the_task(smoothing: float) -> None:
    """Returns the sum over examples; the mean is taken over the mini-batch."""
    layer = _layer(loss_weight=0.4, label_smoothing=smoothing, loss_name="extra")
    with ForwardContext() as context:
        layer.FProp(layer.theta, *_inputs())
    features, label, weight = _inputs()
    logits = layer.classifier.FPropDefaultTheta(features)
    mean, weight = softmax_cross_entropy(logits, label, weight, smoothing).loss
    np.testing.assert_allclose(context.losses["extra"], 0.4 * mean * weight, rtol=1e-6)


def test_outputs_pass_and_targets_do_not() -> None:
    features, *targets = _inputs()
    layer = _layer(num_outputs=2)
    for do_eval, given in ((False, targets), (True, []), (True, targets)):
        with ForwardContext(do_eval=do_eval):
            first, second = layer.FProp(layer.theta, features, None, *given)
        assert first is features
        assert second is None
    with ForwardContext():
        assert _layer().FProp(layer.theta, features, *targets) is features


def test_nothing_is_computed_in_evaluation() -> None:
    with tf.Graph().as_default() as graph, ForwardContext(do_eval=True) as context:
        layer = _layer()
        theta, inputs = layer.theta, _inputs()
        num_before = len(graph.get_operations())
        layer.FProp(theta, *inputs)
        assert len(graph.get_operations()) == num_before
    assert not context.losses


def test_training_needs_targets() -> None:
    layer = _layer()
    with fails(path="side", got="0 inputs there"):
        layer.FProp(layer.theta, _inputs()[0])


def test_params_are_checked() -> None:
    with fails(path="side.loss_weight", got=0.0):
        _layer(loss_weight=0.0)
    with fails(path="label_smoothing", got=1.5):
        _layer(label_smoothing=1.5)
