"""Replicas compute what one pipeline computes for the same batch shards.

The last tests are about the bytes that a step sends between devices.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.execution.pipeline_spec import (
    owners_round_robin,
    replica_devices,
)
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.training.step.train_step import TrainStep
from lingvo_pipe.training.task.base_task import BaseTask
from tests.pipeline.example_layers import gradients, pipeline, raw_values
from tests.pipeline.plain_model import bytes_of
from tests.pipeline.prologue_models import MODELS as PROLOGUE_MODELS, pipeline_of
from tests.pipeline.small_tasks import TASKS
from tests.support.cases import exhaustive
from tests.support.errors import fails

NUM_STEPS = 3
NUM_MICRO_BATCHES = 4
BATCH_SIZE = 8
RAGGED_BATCH_SIZE = 7


def _task(name: str, **pipeline: Any) -> BaseTask:
    p = TASKS[name].make_params().Set(name="task")
    p.pipeline.Set(num_micro_batches=NUM_MICRO_BATCHES, **pipeline)
    return p.Instantiate()


def _step(name: str, **pipeline: Any) -> TrainStep:
    return TrainStep(_task(name, **pipeline))


def _state_after_steps(name: str, batch_size: int, **pipeline: Any) -> dict[str, bytes]:
    step = _step(name, **pipeline)
    for seed in range(NUM_STEPS):
        step(TASKS[name].make_batch(batch_size, seed))
    return {path: v.numpy().tobytes() for path, v in step.State().items()}


@functools.cache
def _state_of_one_device(name: str, batch_size: int, num_batch_shards: int) -> Any:
    return _state_after_steps(name, batch_size, num_batch_shards=num_batch_shards)


CASES = [
    (2, 1, 3, "zero_bubble", BATCH_SIZE),
    (2, 2, 1, "gpipe", BATCH_SIZE),
    (2, 2, 2, "1f1b", RAGGED_BATCH_SIZE),
    (2, 2, 4, "gpipe", BATCH_SIZE),
    (4, 2, 2, "gpipe", BATCH_SIZE),
    (4, 4, 2, "1f1b", RAGGED_BATCH_SIZE),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "case"),
    [*itertools.product(("transformer of 4", "amoebanet of 4"), CASES)],
)
def test_bytes_depend_on_shards_and_not_on_replicas(
    name: str, case: tuple[int, int, int, str, int]
) -> None:
    num_batch_shards, num_replicas, num_stages, schedule, batch_size = case
    found = _state_after_steps(
        name,
        batch_size,
        num_batch_shards=num_batch_shards,
        num_replicas=num_replicas,
        splits=num_stages,
        schedule=schedule,
    )
    want = _state_of_one_device(name, batch_size, num_batch_shards)
    assert found.keys() == want.keys(), "paths do not depend on replicas"
    assert [path for path in want if found[path] != want[path]] == []


def _gradients(name: str, **pipeline: Any) -> list[np.ndarray]:
    task = _task(name, **pipeline)
    batch = TASKS[name].make_batch(BATCH_SIZE, 0)
    with ForwardContext(step=tf.constant(0, tf.int64)):
        result = task.ComputeGradients(task.Values(), batch)
    flat = tf.nest.flatten(result.gradients)
    accumulators = tf.nest.flatten(result.accumulated)
    return [x.numpy() for x in (*flat, *accumulators) if x is not None]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["transformer of 4", "amoebanet of 4"])
def test_gradients_and_statistics_are_those_of_one_pipeline_but_for_rounding(
    name: str,
) -> None:
    """For one step: later ones magnify a last bit. The numbers are near 1."""
    expected = _gradients(name, splits=2)
    found = _gradients(name, splits=2, num_replicas=2)
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-6 * max(1, np.abs(y).max()))


def test_shards_are_summed_in_order() -> None:
    """Like micro-batches: shards of one each leave the bytes of a single shard."""
    expected = _gradients("transformer of 4")
    found = _gradients("transformer of 4", num_batch_shards=NUM_MICRO_BATCHES)
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_array_equal(x, y)


def test_evaluations_have_the_same_outputs_and_metrics() -> None:
    name = "transformer of 4"
    batch = TASKS[name].make_batch(BATCH_SIZE, 0)
    found = []
    for replicas, stages in ((1, 1), (2, 2)):
        task = _task(name, num_batch_shards=2, num_replicas=replicas, splits=stages)
        theta = task.Values().pipeline
        with ForwardContext(do_eval=True):
            outputs = task.pipeline.FProp(theta, *task.PipelineInputs(batch))
            metrics = task.ComputeMetrics(task.Values(), batch)
        found.append(bytes_of((outputs, metrics)))
    assert found[0] == found[1]


@pytest.mark.exhaustive
def test_an_outer_tape_sees_the_gradients_of_one_pipeline() -> None:
    name = "transformer of 4"
    batch = TASKS[name].make_batch(BATCH_SIZE, 0)
    found = []
    for replicas, stages in ((1, 1), (2, 2)):
        task = _task(name, num_batch_shards=2, num_replicas=replicas, splits=stages)
        theta = task.Values().pipeline
        with tf.GradientTape() as tape, ForwardContext(step=tf.constant(0, tf.int64)):
            tape.watch(theta)
            outputs = task.pipeline.FProp(theta, *task.PipelineInputs(batch))
            loss = tf.add_n([tf.reduce_sum(x**2) for x in tf.nest.flatten(outputs)])
        found.append(bytes_of(tape.gradient(loss, tf.nest.flatten(theta))))
    assert found[0] == found[1] != []


@pytest.mark.parametrize(
    "model", ["sums", *(exhaustive(x) for x in PROLOGUE_MODELS if x != "sums")]
)
def test_the_prologue_runs_once_for_all_replicas(model: str) -> None:
    batch = PROLOGUE_MODELS[model][2](BATCH_SIZE)
    found = []
    for replicas, stages in ((1, 1), (2, 2)):
        layer = pipeline_of(model, stages, num_replicas=replicas, num_batch_shards=2)
        result = gradients(layer, batch)
        found.append(bytes_of((result.gradients, result.accumulated)))
    assert found[0] == found[1]


def test_weights_and_optimizer_slots_are_spread_over_the_replicas() -> None:
    step = _step("transformer of 4", num_replicas=2, splits=2)
    pipeline = step.task.pipeline
    assert len({d for own in pipeline.replicas for d in own}) == 4
    for i, (cell, owner) in enumerate(
        zip(pipeline.cells, pipeline.spec.layout.owners, strict=True)
    ):
        stage = pipeline.stage_of_cell(i)
        assert owner in [own[stage] for own in pipeline.replicas]
        variables = cell.VariablePaths()
        slots = [v for p, v in step.State().items() if any(x in p for x in variables)]
        assert {v.device for v in slots} <= {owner}
    for own in pipeline.replicas:
        assert set(own) <= set(pipeline.spec.layout.owners)


def test_each_replica_owns_its_share_of_each_stage() -> None:
    for num_replicas, num_stages in itertools.product([1, 2, 3], [1, 2, 4]):
        devices = [f"cpu:{i}" for i in range(num_replicas * num_stages)]
        replicas = replica_devices(devices, num_replicas, list(range(num_stages)))
        assert [name for own in replicas for name in own] == devices
        boundaries = [6 * (k + 1) for k in range(num_stages)]
        owners = owners_round_robin(boundaries, replicas)
        counts = [owners.count(name) for name in devices]
        assert sum(counts) == boundaries[-1]
        assert set(counts) == {6 // num_replicas}


@pytest.mark.exhaustive
def test_each_device_of_a_replica_needs_what_it_would_alone() -> None:
    def peaks(**pipeline: Any) -> list[int]:
        task = _task("transformer of 4", **pipeline)
        batch = TASKS["transformer of 4"].make_batch(BATCH_SIZE, 0)
        inputs, targets = task.PipelineInputs(batch), task.LossTargets(batch)
        with ForwardContext(step=tf.constant(0, tf.int64)):
            return task.pipeline.PeakBytes(inputs, targets, task.ComputeLoss)

    schedule = {"splits": 2, "schedule": "1f1b", "recompute": "never"}
    alone = peaks(**schedule)
    # 1f1b stashes at most one micro-batch per stage.
    assert peaks(**schedule, num_replicas=2) == 2 * alone
    in_turn = peaks(**schedule, num_batch_shards=2)
    assert all(a < b < 2 * a for a, b in zip(alone, in_turn, strict=True))


def test_a_stage_is_on_devices_of_one_kind() -> None:
    with fails(path="devices", got=["gpu:0", "cpu:2"]):
        replica_devices(["cpu:0", "gpu:0", "cpu:1", "cpu:2"], 2, [0, 1])


def test_replicas_are_not_for_tpus() -> None:
    with fails(path="num_replicas", got=2):
        replica_devices(["tpu:0", "tpu:1"], 2, [0])
    assert replica_devices(["tpu:0", "tpu:1"], 1, [0, 1]) == [["tpu:0", "tpu:1"]]


# ---- Bytes that a step sends.

DIMS = [5, 6, 7, 3]
FLOAT = 4


def _loss(outputs: tf.Tensor, targets: tf.Tensor) -> NestedMap:
    weight = tf.reduce_sum(tf.ones_like(targets))
    return NestedMap(loss=(tf.reduce_mean((outputs - targets) ** 2), weight))


def _dense_layers(num_replicas: int = 1, **params: Any) -> PipeliningLayer:
    """Returns a pipeline with a stage for each dense layer."""
    cells = [
        FCLayer.Params().Set(input_dim=a, output_dim=b)
        for a, b in zip(DIMS, DIMS[1:], strict=False)
    ]
    return pipeline(cells, len(cells), 4, num_replicas=num_replicas, **params)


def _ones() -> tuple[list[tf.Tensor], tf.Tensor]:
    return [tf.ones([BATCH_SIZE, DIMS[0]])], tf.ones([BATCH_SIZE, DIMS[-1]])


def _num_weights(stage: int) -> int:
    return (DIMS[stage] + 1) * DIMS[stage + 1]


@pytest.mark.parametrize(
    "params",
    [
        exhaustive({"schedule": "gpipe"}),
        exhaustive({"schedule": "1f1b", "recompute": "never"}),
        {"schedule": "zero_bubble"},
    ],
)
def test_activations_go_forward_and_gradients_back(params: dict[str, Any]) -> None:
    layer = _dense_layers(**params)
    devices, expected = layer.devices, {}
    for k in range(2):
        size = BATCH_SIZE * DIMS[k + 1] * FLOAT
        pair = devices[k], devices[k + 1]
        expected[pair] = expected[pair[::-1]] = size
    assert layer.BoundaryBytes(*_ones(), _loss) == expected


@pytest.mark.parametrize(
    ("num_batch_shards", "num_replicas"), [exhaustive(2, 2), (4, 2)]
)
def test_replicas_exchange_weights_and_gradients(
    num_batch_shards: int, num_replicas: int
) -> None:
    layer = _dense_layers(num_replicas, num_batch_shards=num_batch_shards)
    found = layer.BoundaryBytes(*_ones(), _loss)
    want: Counter[tuple[str, str]] = Counter()
    for devices in layer.replicas:
        for k in range(2):
            size = BATCH_SIZE * DIMS[k + 1] * FLOAT // num_replicas
            want[devices[k], devices[k + 1]] += size
            want[devices[k + 1], devices[k]] += size
    for k, (owner, other) in enumerate(zip(*layer.replicas, strict=True)):
        want[owner, other] += _num_weights(k) * FLOAT
        want[other, owner] += _num_weights(k) * FLOAT * num_batch_shards // num_replicas
    assert found == want


@pytest.mark.parametrize("num_replicas", [exhaustive(1), 2])
def test_nothing_else_crosses_in_the_emitted_graph(num_replicas: int) -> None:
    """Apart from gradients, only single numbers cross devices."""
    layer = _dense_layers(num_replicas)
    with ForwardContext(step=tf.constant(0, tf.int64)):
        layer.ComputeGradients(raw_values(layer), *_ones(), _loss)
    (function,) = layer.functions
    crossing: Counter[int] = Counter()
    for operation in function.graph.get_operations():
        for x in operation.inputs:
            boundaries = {x.op.device, operation.device}
            made_here = x.op.type not in ("Placeholder", "Const", "StridedSlice")
            if len(boundaries) == 2 and "" not in boundaries and made_here:
                crossing[x.shape.num_elements() or 1] += 1
    accumulators = [n for k in range(3) for n in (DIMS[k] * DIMS[k + 1], DIMS[k + 1])]
    sizes = {size for size in crossing if size > 1}
    assert sizes == (set(accumulators) if num_replicas > 1 else set())
