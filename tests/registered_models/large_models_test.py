"""Graphs of published models on a GPU for each stage, not run.

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
from lingvo_pipe.layers.core.model_size import parameter_counts
from lingvo_pipe.pipeline.devices import stage_devices
from lingvo_pipe.pipeline.devices.device_names import device_names
from tests.support.cases import exhaustive

AMOEBANET = "image.imagenet.AmoebaNetB557M"
NUMS_STAGES = {"lm.giant.L103": 8, "lm.giant.L415": 32, AMOEBANET: 4}


class Emitted(NamedTuple):
    """A model's task, its devices, and the nodes of its pipeline's graph."""

    devices: list[str]
    task: Any
    nodes: Sequence[Any]


def _without_initial_value(_: Any, **variable: Any) -> Any:
    """Creates a variable without initial value, which would be most of the graph."""
    keys = ("shape", "dtype", "trainable", "name")
    return UninitializedVariable(**{key: variable[key] for key in keys})


@pytest.fixture(
    scope="module",
    params=[*map(exhaustive, NUMS_STAGES)],
)
def emitted(request: pytest.FixtureRequest) -> Emitted:
    """Returns a model's graph; needs no GPU."""
    devices = [f"gpu:{i}" for i in range(NUMS_STAGES[request.param])]
    params = model_registry.GetParams(request.param, "Train")
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
    return Emitted([name.full for name in device_names(devices)], task, nodes)


def test_each_stage_has_a_loop_on_its_device(emitted: Emitted) -> None:
    loops = [node.device for node in emitted.nodes if node.op == "While"]
    assert sorted(loops) == sorted(emitted.devices)


def test_each_variable_is_on_the_device_of_its_stage(emitted: Emitted) -> None:
    pipeline = emitted.task.pipeline
    for i, cell in enumerate(pipeline.cells):
        device = emitted.devices[pipeline.stage_of_cell(i)]
        assert {v.device for v in tf.nest.flatten(cell.vars)} == {device}


def test_memory_grows_little_with_depth(emitted: Emitted) -> None:
    """L415 takes at most a quarter of the memory that L1663 may take, 16 GiB."""
    num_layers = len(emitted.task.pipeline.cells)
    assert len(emitted.nodes) < 60 * num_layers or num_layers < 100
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert peak_kib < 4 * 2**20


def test_an_amoebanet_has_the_published_number_of_parameters() -> None:
    cells = model_registry.GetParams(AMOEBANET, "Train").task.pipeline.cell_tpl
    counts = dict(zip([p.name for p in cells], parameter_counts(cells), strict=True))
    assert counts.pop("auxiliary_head") == 1_786_137
    assert sum(counts.values()) == 557_286_057
