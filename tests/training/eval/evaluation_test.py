"""Evaluations average metrics over the examples of positive weight."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.eval.evaluation import Evaluation
from lingvo_pipe.training.task.base_task import BaseTask
from tests.support.errors import fails
from tests.training.toy_run import Input, batch, make_task


class LabeledTask(BaseTask):
    """A task with a second metric: the mean label of some examples."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.name = "task"
        p.pipeline.cell_tpl = [FCLayer.Params().Set(input_dim=1, output_dim=1)]
        return p

    def PipelineInputs(self, input_batch: NestedMap) -> list[tf.Tensor]:
        return [input_batch.x]

    def LossTargets(self, input_batch: NestedMap) -> NestedMap:
        return input_batch

    def ComputeLoss(self, predictions: tf.Tensor, targets: NestedMap) -> NestedMap:
        count = tf.reduce_sum(targets.counts)
        total = tf.reduce_sum(targets.label * targets.counts)
        return NestedMap(
            loss=(tf.reduce_mean(predictions**2), tf.reduce_sum(targets.weight)),
            label=(tf.math.divide_no_nan(total, count), count),
        )


def _batch(label: float, counts: float, weight: float = 1.0) -> NestedMap:
    return NestedMap(
        x=tf.ones([2, 1]),
        label=tf.constant([label, label]),
        counts=tf.constant([0.0, counts]),
        weight=tf.constant([weight, 0.0]),
    )


@pytest.fixture(name="evaluation", scope="module")
def _evaluation() -> Evaluation:
    return Evaluation(LabeledTask.Params().Instantiate())


def test_means_are_weighted(evaluation: Evaluation) -> None:
    metrics = evaluation([_batch(3.0, 0.0), _batch(4.0, 1.0), _batch(7.0, 2.0)])
    assert metrics["label"] == pytest.approx((4.0 + 2 * 7.0) / 3)
    assert metrics.keys() == {"loss", "label"}


def test_a_metric_without_weight_is_left_out(evaluation: Evaluation) -> None:
    loss = evaluation([_batch(3.0, 1.0)])["loss"]
    assert evaluation([_batch(3.0, 0.0), _batch(5.0, 0.0)]) == {"loss": loss}


def test_a_loss_without_weight_is_refused(evaluation: Evaluation) -> None:
    for counts, empty in ((1.0, ["loss"]), (0.0, ["label", "loss"])):
        with fails(path="EvalBatches", got=f"a total weight of 0 for {empty}"):
            evaluation([_batch(3.0, counts, weight=0.0)])
    loss = evaluation([_batch(3.0, 1.0)])["loss"]
    both = evaluation([_batch(3.0, 1.0, weight=0.0), _batch(3.0, 1.0)])
    assert both["loss"] == loss


def test_a_mean_without_weight_is_left_out(evaluation: Evaluation) -> None:
    """A batch of padding alone has no mean: it may be NaN."""
    batches = [_batch(1.0, 1.0), _batch(1.0, 1.0, weight=0.0)]
    batches[1].x *= math.nan
    assert evaluation(batches)["loss"] == evaluation(batches[:1])["loss"]


def test_no_batches_and_negative_weights_are_refused(evaluation: Evaluation) -> None:
    with fails(path="EvalBatches", got=0):
        evaluation([])
    with fails(path="weight", got=-1.0):
        evaluation([_batch(1.0, 1.0, weight=-1.0)])


def test_an_error_in_reading_a_batch_says_so(evaluation: Evaluation) -> None:
    def read() -> Iterator[NestedMap]:
        yield _batch(1.0, 1.0)
        raise tf.errors.DataLossError(None, None, "x")

    with pytest.raises(tf.errors.DataLossError) as error:
        evaluation(read())
    assert error.value.message.startswith("In reading the input: x")


def test_metrics_that_are_not_finite_are_counted(evaluation: Evaluation) -> None:
    nan = float("nan")
    metrics = evaluation([_batch(nan, 1.0), _batch(1.0, 1.0), _batch(nan, 2.0)])
    assert math.isnan(metrics["label"])
    (warning,) = evaluation.warnings
    assert re.search(r"\bwarning\b.*\blabel\b.*\b2 of 3\b", warning)
    evaluation([_batch(nan, 0.0), _batch(1.0, 1.0)])  # Without weight.
    assert not evaluation.warnings


def test_evaluation_is_the_mean_over_examples_without_padding() -> None:
    task: Any = make_task()
    batches = [batch(0), batch(1), batch(2, num_padding=3)]
    found = Evaluation(task)(Input(*batches).EvalBatches())
    first, second = (cell.vars for cell in task.pipeline.cells)
    images, labels, weights = (
        np.concatenate([b[name] for b in batches])
        for name in ("image", "label", "weight")
    )
    is_real = weights > 0
    hidden = np.maximum(images @ first.w.numpy() + first.b.numpy(), 0)
    logits = hidden @ second.w.numpy() + second.b.numpy()
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    losses = -log_probs[np.arange(len(labels)), labels]
    want = {
        "loss": losses[is_real].mean(),
        "accuracy": (logits.argmax(-1) == labels)[is_real].mean(),
    }
    assert found == pytest.approx(want, rel=1e-5)
