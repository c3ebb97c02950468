"""Errors of TensorFlow in a run name place, operation, cause and remedy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.core.error_text import error_text
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.models.images.image_classifier import ImageClassifier
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.eval.evaluation import Evaluation
from lingvo_pipe.training.task.base_task import BaseTask
from tests.support.cases import exhaustive
from tests.training.toy_run import CLASSES, STEPS, Input, batch, make_task, run

DATA = Input(*map(batch, range(STEPS)))


class GreedyLayer(BaseLayer):
    """A layer that asks for more memory than there is, as soon as it runs."""

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        length = tf.cast(2**21 + 0 * x[0, 0], tf.int32)
        return x + tf.reduce_sum(tf.random.stateless_uniform([length, length], [1, 2]))


def greedy_task() -> BaseTask:
    p = ImageClassifier.Params().Set(name="task")
    dense = FCLayer.Params().Set(input_dim=3, output_dim=CLASSES)
    p.pipeline.Set(cell_tpl=[GreedyLayer.Params(), dense], num_micro_batches=2)
    p.train.Set(learning_rate=0.1, max_steps=STEPS)
    return p.Instantiate()


class MissingFile(Input):
    """An input that reads a missing file for its second batch."""

    def TrainBatches(self, start_step: int = 0) -> Any:
        def read(index: tf.Tensor, element: NestedMap) -> NestedMap:
            def missing() -> tf.Tensor:
                return tf.strings.length(tf.io.read_file("/absent/image.png"))

            length = tf.cond(index > 0, missing, lambda: 0)
            return NestedMap(element, label=element.label + length)

        return super().TrainBatches(start_step).enumerate().map(read)


def too_high(seed: int) -> NestedMap:
    return NestedMap(batch(seed), label=np.full([4], CLASSES + 5, np.int32))


@pytest.mark.parametrize(
    ("task", "data", "kind", "place", "cause"),
    [
        (
            make_task,
            Input(too_high(0)),
            tf.errors.InvalidArgumentError,
            r"pass of the loss\b.*, micro-batch 0: .*\b7\b.* \(operation .*\)",
            "classes",
        ),
        exhaustive(
            greedy_task,
            DATA,
            tf.errors.ResourceExhaustedError,
            r"step 1: .* \(operation .*\)",
            "memory",
        ),
        (
            make_task,
            MissingFile(*map(batch, range(STEPS))),
            tf.errors.NotFoundError,
            "reading the input: /absent/image.png",
            "not there",
        ),
    ],
    ids=["label", "memory", "file"],
)
def test_an_error_in_a_run_has_one_form(
    task: Any,
    data: Any,
    kind: type[tf.errors.OpError],
    place: str,
    cause: str,
    tmp_path: Path,
) -> None:
    with pytest.raises(kind) as found:
        run(task(), data, tmp_path)
    text = error_text(found.value)
    assert re.match(rf"{kind.__name__}: In (the forward )?{place}", text)
    lines = [line for line in text.splitlines() if not line.startswith("  ")]
    assert [line.partition(": ")[0] for line in lines[1:]] == [
        "Likely cause",
        "What to do",
    ]
    assert cause in lines[1]


def test_an_error_in_an_evaluation_has_the_same_form() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError) as found:
        Evaluation(make_task())([too_high(0)])
    text = str(found.value)
    assert re.match(r"In the forward pass of the loss\b.*, micro-batch 0: ", text)
    assert "\nLikely cause: " in text
