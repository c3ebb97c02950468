"""Graphs of published language models on a GPU for each stage, not run.

`lm.giant.L1663`, on 128 GPUs, takes five times as long as L415 and is built alike.
"""

from __future__ import annotations

import resource
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import UninitializedVariable

import model_registry
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.pipeline.devices import stage_devices
from lingvo_pipe.pipeline.devices.device_names import device_names
from tests.support.cases import exhaustive

# Number of layers of a model -> number of its stages.
NUMS_STAGES = {103: 8, 415: 32}


class Emitted(NamedTuple):
    """A model's task, its devices, and the nodes of its pipeline's graph."""

    num_layers: int
    devices: list[str]
    task: Any
    nodes: Sequence[Any]


def _without_initial_value(_: Any, **variable: Any) -> Any:
    """Creates a variable without initial value, which would be most of the graph."""
    keys = ("shape", "dtype", "trainable", "name")
    return UninitializedVariable(**{key: variable[key] for key in keys})


@pytest.fixture(scope="module", params=[103, exhaustive(415)])
def emitted(request: pytest.FixtureRequest) -> Emitted:
    """Returns a model's graph; needs no GPU."""
    devices = [f"gpu:{i}" for i in range(NUMS_STAGES[request.param])]
    params = model_registry.GetParams(f"lm.giant.L{request.param}", "Train")
    params.task.pipeline.devices = devices
    spec = params.input.Instantiate().element_spec
    with (
        pytest.MonkeyPatch.context() as patch,
        tf.Graph().as_default(),
        tf.variable_creator_scope(_without_initial_value),
    ):
        patch.setattr(stage_devices, "_check_present", lambda names: None)
        task = params.task.Instantiate()
        batch = spec.Transform(
            lambda part: tf.compat.v1.placeholder(part.dtype, part.shape)
        )
        with ForwardContext(step=tf.constant(3, tf.int64)):
            task.ComputeGradients(task.vars, batch)
    (function,) = task.pipeline.functions
    nodes = function.graph.as_graph_def().node
    full_names = [name.full for name in device_names(devices)]
    return Emitted(request.param, full_names, task, nodes)


def test_each_stage_has_a_loop_on_its_device(emitted: Emitted) -> None:
    loops = [node.device for node in emitted.nodes if node.op == "While"]
    assert sorted(loops) == sorted(emitted.devices)


def test_each_variable_is_on_the_device_of_its_stage(emitted: Emitted) -> None:
    task = emitted.task
    for i, cell in enumerate(task.pipeline.cells):
        device = emitted.devices[task.pipeline.stage_of_cell(i)]
        assert {v.device for v in tf.nest.flatten(cell.vars)} == {device}


def test_memory_grows_little_with_depth(emitted: Emitted) -> None:
    """L415 takes at most a quarter of the memory that L1663 may take, 16 GiB."""
    assert len(emitted.nodes) < 60 * emitted.num_layers
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert peak_kib < 4 * 2**20
