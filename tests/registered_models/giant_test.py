"""A published language model of 32 stages on as many GPUs: its step's graph, not run.

`lm.giant.L1663`, on 128 GPUs, takes five times as long and is built just so.
"""

from __future__ import annotations

import resource
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import UninitializedVariable

import model_registry
from lingvo_pipe.layers.forward_context import ForwardContext
from lingvo_pipe.pipeline.devices import stage_devices
from lingvo_pipe.pipeline.devices.device_names import device_names

NAME, NUM_STAGES = "lm.giant.L415", 32
DEVICES = [f"gpu:{i}" for i in range(NUM_STAGES)]


def _without_first_value(_: Any, **variable: Any) -> Any:
    """A variable's creator; first values would be most of the graph around."""
    keys = ("shape", "dtype", "trainable", "name")
    return UninitializedVariable(**{key: variable[key] for key in keys})


@pytest.fixture(scope="module")
def emitted() -> Any:
    """The task, and the nodes of its pipeline's graph; no GPU need exist."""
    params = model_registry.GetParams(NAME, "Train")
    params.task.pipeline.devices = DEVICES
    spec = params.input.Instantiate().element_spec
    with (
        pytest.MonkeyPatch.context() as patch,
        tf.Graph().as_default(),
        tf.variable_creator_scope(_without_first_value),
    ):
        patch.setattr(stage_devices, "_check_present", lambda names: None)
        task = params.task.Instantiate()
        batch = spec.Transform(
            lambda part: tf.compat.v1.placeholder(part.dtype, part.shape)
        )
        with ForwardContext(step=tf.constant(3, tf.int64)):
            task.ComputeGradients(task.Values(), batch)
    (function,) = task.pipeline.functions
    return task, function.graph.as_graph_def().node


def test_each_stage_has_a_loop_on_its_device(emitted: Any) -> None:
    _, nodes = emitted
    loops = [node.device for node in nodes if node.op == "While"]
    homes = [name.full for name in device_names(DEVICES)]
    assert sorted(loops) == sorted(homes)


def test_each_variable_is_on_the_device_of_its_stage(emitted: Any) -> None:
    task, _ = emitted
    homes = [name.full for name in device_names(DEVICES)]
    for i, cell in enumerate(task.pipeline.cells):
        home = homes[task.pipeline.stage_of_cell(i)]
        assert {v.device for v in tf.nest.flatten(cell.vars)} == {home}


def test_depth_costs_little(emitted: Any) -> None:
    """A quarter of the memory that the deepest may take, 16 GiB."""
    _, nodes = emitted
    assert len(nodes) < 60 * 415
    most_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert most_kib < 4 * 2**20
