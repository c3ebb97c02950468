"""Training of a model whose vocabulary fits on none of its devices."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.devices.stage_devices import stage_devices
from lingvo_pipe.training.optim.keras_optimizer import OptimizerParams
from lingvo_pipe.training.step.train_step import TrainStep
from tests.models.transformer.small_models import (
    sentences,
    small_layer,
    translation_batch,
    translation_task,
)

NUM_TOKENS, NUM_ROWS, LENGTH, M = 100_000, 8, 32, 8


def _params(num_devices: int, **pipeline: Any) -> InstantiableParams:
    p = translation_task(
        num_layers=1,
        num_tokens=NUM_TOKENS,
        model_dim=32,
        hidden_dim=64,
        layer_tpl=small_layer(),
        dropout_prob=0.1,
    )
    p.random_seed = 3
    devices = stage_devices(None, num_devices)
    p.pipeline.Set(num_micro_batches=M, schedule="1f1b", devices=devices, **pipeline)
    p.train.Set(learning_rate=0.01, optimizer=OptimizerParams("Adam", epsilon=1e-3))
    return p


def _batch(step: int) -> NestedMap:
    lengths = [LENGTH - 1 - i for i in range(NUM_ROWS)]
    source, target = ([[x] for x in sentences(lengths, 2 * step + i)] for i in (0, 1))
    return translation_batch(source, target, LENGTH, LENGTH)


def _peak_bytes(task: Any) -> list[int]:
    batch = _batch(0)
    inputs, targets = task.PipelineInputs(batch), task.LossTargets(batch)
    with ForwardContext(step=tf.constant(0, tf.int64)):
        return task.pipeline.PeakBytes(inputs, targets, task.ComputeLoss)


def _of_micro_batches(task: Any) -> dict[str, Any]:
    inputs = task.PipelineInputs(_batch(0))
    rows = NUM_ROWS // M
    shapes = tf.nest.map_structure(lambda x: (rows, *x.shape[1:]), inputs)
    dtypes = tf.nest.map_structure(lambda x: x.dtype, inputs)
    return {"input_shapes": list(shapes), "input_dtypes": list(dtypes)}


def _losses(task: Any) -> list[float]:
    step = TrainStep(task)
    return [float(step(_batch(i)).loss[0]) for i in range(5)]


@pytest.mark.exhaustive
def test_four_devices_of_a_third_of_the_memory_train_it() -> None:
    whole = _params(1).Instantiate()
    (needed,) = _peak_bytes(whole)
    limited = {"memory_limit": needed / 3, "splits": "auto"}
    limited |= _of_micro_batches(whole)
    with pytest.raises(UserValueError, match=r"task/pipeline\.memory_limit"):
        _params(4, **limited).Instantiate()
    sliced = _params(4, slices="auto", **limited).Instantiate()
    assert sliced.pipeline.num_stages == 4
    assert max(_peak_bytes(sliced)) <= needed / 3
    assert _losses(sliced) == pytest.approx(_losses(whole), rel=1e-5)
