"""AmoebaNet in a pipeline with auxiliary head, drop-path and batch norm."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.core.nests import as_args
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.batch_norm import BatchNormLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.dropout import DropPathLayer
from lingvo_pipe.models.amoebanet.network import amoebanet
from lingvo_pipe.models.amoebanet.stem_and_head import AuxiliaryHeadLayer
from lingvo_pipe.models.images.auxiliary_classifier import AuxiliaryClassifierLayer
from lingvo_pipe.models.images.image_classifier import ImageClassifier
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.devices import stage_devices  # noqa: F401  Asks for several.
from lingvo_pipe.training.optim.keras_optimizer import OptimizerParams

AUXILIARY_WEIGHT = 0.4
NUM_CLASSES = 3


def _cells(keep_path: float) -> list[InstantiableParams]:
    """Returns a stem, two normal cells, a reduction cell between, and both heads."""
    head = AuxiliaryHeadLayer.Params().Set(pool_window=3, pool_stride=2, scale=0.05)
    *cells, last = amoebanet(
        genotype="B",
        num_cells=3,
        num_filters=4,
        num_classes=NUM_CLASSES,
        num_image_channels=1,
        small_images=True,
        norm_tpl=BatchNormLayer.Params().Set(decay=0.5),
        drop_path_tpl=DropPathLayer.Params().Set(keep_prob=keep_path, num_steps=2),
        auxiliary_tpl=AuxiliaryClassifierLayer.Params().Set(
            classifier=head, loss_weight=AUXILIARY_WEIGHT, label_smoothing=0.1
        ),
        image_shape=[8, 8],
    )
    return [*cells[:5], last.Set(num_in=cells[4].classifier.num_in)]


def _task(keep_path: float = 0.6, **pipeline: Any) -> InstantiableParams:
    p = ImageClassifier.Params().Set(
        name="task", label_smoothing=0.1, feed_targets=True
    )
    p.pipeline.Set(cell_tpl=_cells(keep_path), **pipeline)
    p.train.Set(
        learning_rate=0.05,
        optimizer=OptimizerParams("SGD", momentum=0.9, nesterov=True),
    )
    return p


def _batch(batch_size: int) -> NestedMap:
    def draw(shape: list[int], stream: int, **limits: Any) -> tf.Tensor:
        return tf.random.stateless_uniform(shape, [0, stream], **limits)

    return NestedMap(
        image=draw([batch_size, 8, 8, 1], 1),
        label=draw([batch_size], 2, maxval=NUM_CLASSES, dtype=tf.int32),
        weight=draw([batch_size], 3),
    )


def _gradients(task: Any, batch: NestedMap) -> dict[str, np.ndarray]:
    with ForwardContext(step=tf.constant(1, tf.int64)):
        tree = task.ComputeGradients(task.Values(), batch).gradients
    paths = {v.ref(): path for path, v in task.VariablePaths().items()}
    pairs = zip(tf.nest.flatten(task.vars), tf.nest.flatten(tree), strict=True)
    return {paths[v.ref()]: g.numpy() for v, g in pairs if g is not None}


def _plain_gradients(task: Any, batch: NestedMap) -> list[dict[str, np.ndarray]]:
    """Returns a tape's gradients of the loss, and of the auxiliary loss."""
    trained = task.TrainedVariables()
    step, first = tf.constant(1, tf.int64), tf.constant(0, tf.int64)
    with ForwardContext(step=step, first_example=first) as context:
        with tf.GradientTape(persistent=True) as tape:
            outputs: Any = tuple(task.PipelineInputs(batch))
            for cell in task.pipeline.cells:
                outputs = cell.FProp(cell.theta, *as_args(outputs))
            loss = task.ComputeLoss(outputs, task.LossTargets(batch)).loss[0]
            mean = context.losses["auxiliary_loss"] / batch.label.shape[0]
        found = [
            tape.gradient(x, trained, unconnected_gradients="zero")
            for x in (loss, mean)
        ]
    return [
        {path: tf.convert_to_tensor(g).numpy() for path, g in gradients.items()}
        for gradients in found
    ]


def _largest_error(got: dict[str, Any], want: dict[str, Any]) -> float:
    """Compares relative to each variable's largest gradient, or to all if tiny."""
    assert got.keys() == want.keys()
    least = 1e-3 * max(np.abs(g).max() for g in want.values())
    errors = [
        np.abs(got[path] - g).max() / max(np.abs(g).max(), least)
        for path, g in want.items()
    ]
    return float(max(errors))


@pytest.mark.exhaustive
def test_gradients_are_of_both_losses() -> None:
    """One micro-batch, since batch norm normalizes by it."""
    task, batch = _task(splits=2, num_micro_batches=1).Instantiate(), _batch(8)
    got = _gradients(task, batch)
    of_main, of_auxiliary = _plain_gradients(task, batch)
    for share, is_near in ((1.0, True), (0.5, False)):
        want = {path: g + share * of_auxiliary[path] for path, g in of_main.items()}
        error = _largest_error(got, want)
        assert error < 1e-4 if is_near else error > 1e-2
    head = [np.any(g) for path, g in got.items() if "/auxiliary_head/" in path]
    assert len(head) == 8
    assert all(head)


def test_evaluation_runs_without_the_auxiliary_head() -> None:
    """It needs no labels either."""
    task, batch = _task(splits=2, num_micro_batches=2).Instantiate(), _batch(8)
    with ForwardContext(do_eval=True):
        metrics = task.ComputeMetrics(task.Values(), batch)
        assert set(metrics) == {"loss", "accuracy"}
        logits = task.ComputePredictions(task.theta, NestedMap(image=batch.image))
        want = task.ComputeLoss(logits, task.LossTargets(batch)).loss[0]
    np.testing.assert_allclose(metrics.loss[0], want, rtol=1e-6)


@pytest.mark.exhaustive
def test_drop_path_grows_from_the_first_step() -> None:
    """In the first step nothing is dropped yet."""

    def features(keep_path: float, step: int) -> np.ndarray:
        cells = _task(keep_path).Instantiate().pipeline.cells[:4]
        outputs: Any = (_batch(8).image,)
        with ForwardContext(step=tf.constant(step, tf.int64), first_example=0):
            for cell in cells:
                outputs = cell.FProp(cell.theta, *as_args(outputs))
        return outputs[0].numpy()

    without = features(1.0, 0)
    np.testing.assert_array_equal(without, features(1.0, 1))
    np.testing.assert_allclose(features(0.6, 0), without, rtol=1e-5, atol=1e-6)
    assert not np.allclose(features(0.6, 1), without)
