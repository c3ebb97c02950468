"""What the planner counts of a model is what a pipeline of it takes."""

from __future__ import annotations

import itertools

import pytest
import tensorflow as tf

import model_registry
from lingvo_pipe.layers.forward_context import ForwardContext
from lingvo_pipe.optional_nest import spec_of
from lingvo_pipe.planner.traced_model import ModelTracer
from tests.pipeline.small_tasks import TASKS

BATCH_SIZE = 8
NUM_MICRO_BATCHES = 4


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero_bubble"])
@pytest.mark.parametrize("name", ["transformer", "amoebanet"])
def test_memory_is_what_the_pipeline_counts(name: str, schedule: str) -> None:
    p = TASKS[name].make_params().Set(name="task")
    p.pipeline.Set(num_micro_batches=NUM_MICRO_BATCHES, splits=2, schedule=schedule)
    batch = TASKS[name].make_batch(BATCH_SIZE, 0)
    task = p.Instantiate()
    with ForwardContext(step=tf.constant(0, tf.int64)):
        want = task.pipeline.PeakBytes(
            task.PipelineInputs(batch), task.LossTargets(batch), task.ComputeLoss
        )
    spec = tf.nest.map_structure(spec_of, batch)
    costs = ModelTracer(p, spec).trace(BATCH_SIZE // NUM_MICRO_BATCHES).costs
    *ends, last = task.pipeline.ends
    found = costs.memory.of_devices(task.pipeline.schedule, [*ends, last + 1])
    assert found == want
    trained = task.TrainedVariables().values()
    assert sum(costs.num_parameters) == sum(v.shape.num_elements() for v in trained)
    sent = task.pipeline.BoundaryBytes(
        task.PipelineInputs(batch), task.LossTargets(batch), task.ComputeLoss
    )
    forward = sent[task.pipeline.devices[0], task.pipeline.devices[1]]
    assert costs.crossing[ends[0] - 1] * NUM_MICRO_BATCHES == forward


@pytest.mark.parametrize(
    ("name", "parameters"), [("L3", 282_178_816), ("L13", 785_761_536)]
)
def test_parameters_are_the_published_ones(name: str, parameters: int) -> None:
    """GPipe, table 1. Layers that are alike are traced once; no weight is allocated."""
    params = model_registry.GetParams(f"lm.giant.{name}", "Train")
    tracer = ModelTracer(params.task, params.input.Instantiate().element_spec)
    costs = tracer.trace(1).costs
    assert sum(costs.num_parameters) == parameters
    layers = costs.calls[1:-2]
    assert len({call.residuals for call in layers}) == 1
    assert [b - a for a, b in itertools.pairwise(costs.parameters_before)] == list(
        costs.num_parameters
    )
