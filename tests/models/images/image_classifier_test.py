from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.dropout import DropoutLayer
from lingvo_pipe.models.images.image_classifier import ImageClassifier
from lingvo_pipe.nested_map import NestedMap
from tests.support.errors import fails


def _targets() -> NestedMap:
    return NestedMap(label=tf.constant([1, 0]), weight=tf.constant([1.0, 3.0]))


def _task(label_smoothing: float, **params: Any) -> ImageClassifier:
    p = ImageClassifier.Params().Set(name="task", label_smoothing=label_smoothing)
    p.pipeline.cell_tpl = [FCLayer.Params().Set(input_dim=2, output_dim=2)]
    return p.Set(**params).Instantiate()


def test_labels_are_smoothed_in_training_only() -> None:
    logits = tf.constant([[0.0, 2.0], [1.0, 0.0]])
    plain, smooth = _task(0.0), _task(0.2)
    with ForwardContext(do_eval=True):
        want = plain.ComputeLoss(logits, _targets()).loss
        got = smooth.ComputeLoss(logits, _targets()).loss
    np.testing.assert_array_equal(got, want)
    assert float(smooth.ComputeLoss(logits, _targets()).loss[0]) > float(want[0])


def test_what_only_the_train_loss_includes_is_named() -> None:
    assert _task(0.0).OnlyInTraining() == []
    assert _task(0.2).OnlyInTraining() == ["label smoothing"]
    p = _task(0.0).params.Copy()
    p.pipeline.cell_tpl = [*p.pipeline.cell_tpl, DropoutLayer.Params()]
    assert p.Instantiate().OnlyInTraining() == []
    p.pipeline.cell_tpl[1].keep_prob = 0.5
    assert p.Instantiate().OnlyInTraining() == ["dropout"]


def test_predictions_are_the_pipelines() -> None:
    task = _task(0.0)
    batch = NestedMap(image=tf.ones([3, 2]))
    with ForwardContext(do_eval=True):
        got = task.ComputePredictions(task.theta, batch)
    theta = task.theta.pipeline.cells[0]
    np.testing.assert_allclose(got, tf.ones([3, 2]) @ theta.w + theta.b, rtol=1e-6)


def test_label_smoothing_is_a_share() -> None:
    with fails(path="label_smoothing", got=1.5):
        _task(1.5)


def test_labels_go_into_the_network_in_training_if_asked_to() -> None:
    task = _task(0.0, feed_targets=True)
    batch = NestedMap(image=tf.ones([2, 2]), **_targets())
    inputs = task.PipelineInputs(batch)
    assert [x is y for x, y in zip(inputs, batch.Flatten(), strict=True)] == [True] * 3
    with ForwardContext(do_eval=True):
        (image,) = task.PipelineInputs(NestedMap(image=batch.image))
    assert image is batch.image
    (image,) = _task(0.0).PipelineInputs(batch)
    assert image is batch.image
