"""Replicas share a mini-batch, and leave what one pipeline would of the same parts."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.layers.forward_context import ForwardContext
from lingvo_pipe.pipeline.homes import homes_in_turn, replica_devices
from lingvo_pipe.training.train_step import TrainStep
from tests.pipeline.before_models import MODELS as BEFORE_MODELS
from tests.pipeline.before_models import pipeline_of
from tests.pipeline.example_layers import gradients
from tests.pipeline.small_tasks import TASKS
from tests.support.cases import exhaustive

NUM_STEPS = 3
NUM_MICRO_BATCHES = 4
BATCH_SIZE = 8
RAGGED_BATCH_SIZE = 7


def _step(name: str, **pipeline: Any) -> TrainStep:
    p = TASKS[name].make_params().Set(name="task")
    p.pipeline.Set(num_micro_batches=NUM_MICRO_BATCHES, **pipeline)
    return TrainStep(p.Instantiate())


def _state_after_steps(name: str, batch_size: int, **pipeline: Any) -> dict[str, bytes]:
    step = _step(name, **pipeline)
    for seed in range(NUM_STEPS):
        step(TASKS[name].make_batch(batch_size, seed))
    return {path: v.numpy().tobytes() for path, v in step.State().items()}


@functools.cache
def _state_of_one_device(name: str, batch_size: int, num_parts: int) -> Any:
    return _state_after_steps(name, batch_size, num_parts=num_parts)


CASES = [
    (2, 1, 3, "zero_bubble", BATCH_SIZE),
    (2, 2, 1, "gpipe", BATCH_SIZE),
    (2, 2, 2, "1f1b", RAGGED_BATCH_SIZE),
    (2, 2, 4, "gpipe", BATCH_SIZE),
    (4, 2, 2, "gpipe", BATCH_SIZE),
    (4, 4, 2, "1f1b", RAGGED_BATCH_SIZE),
]
# Two replicas of a part each are among the cases of transparency_test.
ORDINARY = {
    ("transformer", CASES[-1]),
    ("transformer", CASES[0]),
    ("amoebanet", CASES[0]),
}


@pytest.mark.parametrize(
    ("name", "num_parts", "num_replicas", "num_stages", "schedule", "batch_size"),
    [
        (name, *case) if (name, case) in ORDINARY else exhaustive(name, *case)
        for name in ("transformer", "amoebanet")
        for case in CASES
    ],
)
def test_bytes_depend_on_parts_and_not_on_replicas(
    name: str,
    num_parts: int,
    num_replicas: int,
    num_stages: int,
    schedule: str,
    batch_size: int,
) -> None:
    found = _state_after_steps(
        name,
        batch_size,
        num_parts=num_parts,
        num_replicas=num_replicas,
        splits=num_stages,
        schedule=schedule,
    )
    want = _state_of_one_device(name, batch_size, num_parts)
    assert found.keys() == want.keys(), "paths know nothing of replicas"
    assert [path for path in want if found[path] != want[path]] == []


def _gradients(name: str, **pipeline: Any) -> list[np.ndarray]:
    task = _step(name, **pipeline).task
    batch = TASKS[name].make_batch(BATCH_SIZE, 0)
    with ForwardContext(step=tf.constant(0, tf.int64)):
        result = task.ComputeGradients(task.Values(), batch)
    flat = tf.nest.flatten(result.gradients)
    totals = tf.nest.flatten(result.accumulated)
    return [x.numpy() for x in (*flat, *totals) if x is not None]


@pytest.mark.parametrize("name", ["transformer", "amoebanet"])
def test_gradients_and_statistics_are_those_of_one_pipeline_but_for_rounding(
    name: str,
) -> None:
    """Of one step: later ones magnify a last bit. Magnitudes added up are near 1."""
    wanted = _gradients(name, splits=2)
    found = _gradients(name, splits=2, num_replicas=2)
    for x, y in zip(found, wanted, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-6 * max(1, np.abs(y).max()))


def test_parts_are_added_in_their_order() -> None:
    """As micro-batches are: parts of one each leave the bytes of a single part."""
    wanted = _gradients("transformer")
    found = _gradients("transformer", num_parts=NUM_MICRO_BATCHES)
    for x, y in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(x, y)


def test_evaluations_have_the_same_outputs_and_metrics() -> None:
    name, batch = "transformer", TASKS["transformer"].make_batch(BATCH_SIZE, 0)
    found = []
    for replicas, stages in ((1, 1), (2, 2)):
        task = _step(name, num_parts=2, num_replicas=replicas, splits=stages).task
        theta = task.Values().pipeline
        with ForwardContext(do_eval=True):
            outputs = task.pipeline.FProp(theta, *task.PipelineInputs(batch))
            metrics = task.ComputeMetrics(task.Values(), batch)
        flat = tf.nest.flatten((outputs, metrics))
        found.append([x.numpy().tobytes() for x in flat])
    assert found[0] == found[1]


def test_a_tape_around_sees_the_gradients_of_one_pipeline() -> None:
    name = "transformer"
    batch = TASKS[name].make_batch(BATCH_SIZE, 0)
    found = []
    for replicas, stages in ((1, 1), (2, 2)):
        task = _step(name, num_parts=2, num_replicas=replicas, splits=stages).task
        theta = task.Values().pipeline
        with tf.GradientTape() as tape, ForwardContext(step=tf.constant(0, tf.int64)):
            tape.watch(theta)
            outputs = task.pipeline.FProp(theta, *task.PipelineInputs(batch))
            loss = tf.add_n([tf.reduce_sum(x**2) for x in tf.nest.flatten(outputs)])
        taped = tape.gradient(loss, tf.nest.flatten(theta))
        found.append([None if x is None else x.numpy().tobytes() for x in taped])
    assert found[0] == found[1]
    assert any(x is not None for x in found[0])


@pytest.mark.parametrize("model", BEFORE_MODELS)
def test_layers_before_run_once_for_all_replicas(model: str) -> None:
    batch = BEFORE_MODELS[model][2](BATCH_SIZE)
    found = []
    for replicas, stages in ((1, 1), (2, 2)):
        layer = pipeline_of(model, stages, num_replicas=replicas, num_parts=2)
        result = gradients(layer, batch)
        flat = tf.nest.flatten((result.gradients, result.accumulated))
        found.append([None if x is None else x.numpy().tobytes() for x in flat])
    assert found[0] == found[1]


def test_weights_and_what_the_optimizer_keeps_are_spread_over_the_replicas() -> None:
    step = _step("transformer", num_replicas=2, splits=2)
    pipeline = step.task.pipeline
    assert len({d for own in pipeline.replicas for d in own}) == 4
    for i, (cell, home) in enumerate(
        zip(pipeline.cells, pipeline.plan.homes, strict=True)
    ):
        stage = pipeline.stage_of_cell(i)
        assert home in [own[stage] for own in pipeline.replicas]
        variables = cell.VariablePaths()
        slots = [v for p, v in step.State().items() if any(x in p for x in variables)]
        assert {v.device for v in slots} <= {home}
    for own in pipeline.replicas:
        assert set(own) <= set(pipeline.plan.homes)


def test_each_replica_has_its_share_of_each_stage() -> None:
    for num_replicas, num_stages in itertools.product([1, 2, 3], [1, 2, 4]):
        devices = [f"cpu:{i}" for i in range(num_replicas * num_stages)]
        replicas = replica_devices(devices, num_replicas, list(range(num_stages)))
        assert [name for own in replicas for name in own] == devices
        ends = [6 * (k + 1) for k in range(num_stages)]
        homes = homes_in_turn(ends, replicas)
        counts = [homes.count(name) for name in devices]
        assert sum(counts) == ends[-1]
        assert set(counts) == {6 // num_replicas}


def test_each_device_of_a_replica_needs_what_it_would_alone() -> None:
    def peaks(**pipeline: Any) -> list[int]:
        task = _step("transformer", **pipeline).task
        batch = TASKS["transformer"].make_batch(BATCH_SIZE, 0)
        inputs, targets = task.PipelineInputs(batch), task.LossTargets(batch)
        with ForwardContext(step=tf.constant(0, tf.int64)):
            return task.pipeline.PeakBytes(inputs, targets, task.ComputeLoss)

    schedule = {"splits": 2, "schedule": "1f1b", "recompute": "never"}
    alone = peaks(**schedule)
    # Of 1f1b no more micro-batches are kept than there are stages.
    assert peaks(**schedule, num_replicas=2) == 2 * alone
    in_turn = peaks(**schedule, num_parts=2)
    assert all(a < b < 2 * a for a, b in zip(alone, in_turn, strict=True))


@pytest.mark.parametrize(
    ("pipeline", "pattern"),
    [
        ({"num_replicas": 0}, r"\bnum_replicas\D*\b1\D*\btask/pipeline\D* 0\b"),
        ({"num_parts": "2"}, r"\bnum_parts\D*\b1\D*\btask/pipeline\D*'2'"),
        (
            {"num_replicas": 2, "num_parts": 3},
            r"\bnum_parts\W*3\b.*\bnum_replicas\W*2\b",
        ),
        ({"num_replicas": 3}, r"\bnum_micro_batches\W*4\b.*\bnum_replicas\W*3\b"),
        ({"num_parts": 3}, r"\bnum_micro_batches\W*4\b.*\bnum_parts\W*3\b"),
        (
            {"num_replicas": 2, "devices": ["cpu:0"]},
            r"\bdevices\b.*\btask/pipeline\D*\b2\D*\b1\D*\['cpu:0'\]",
        ),
        (
            {
                "num_replicas": 2,
                "devices": ["cpu:0"],
                "splits": "auto",
                "cell_costs": [1.0] * 8,
            },
            r"\bnum_replicas\b.*\btask/pipeline\D*\b1 devices\D*\b2\b",
        ),
    ],
)
def test_replicas_that_can_not_share_are_refused(
    pipeline: dict[str, Any], pattern: str
) -> None:
    with pytest.raises(ValueError, match=pattern):
        _step("transformer", **pipeline)


def test_a_stage_is_on_devices_of_one_kind() -> None:
    with pytest.raises(ValueError, match=r"stage 1\b.*\['gpu:0', 'cpu:2'\]"):
        replica_devices(["cpu:0", "gpu:0", "cpu:1", "cpu:2"], 2, [0, 1])


def test_replicas_are_not_for_tpus() -> None:
    with pytest.raises(ValueError, match=r"\bnum_replicas\D*\b1\D*\bTPUs\D*\b2\b"):
        replica_devices(["tpu:0", "tpu:1"], 2, [0])
    assert replica_devices(["tpu:0", "tpu:1"], 1, [0, 1]) == [["tpu:0", "tpu:1"]]
