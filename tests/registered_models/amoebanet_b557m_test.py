"""The graph of AmoebaNet-B of 557 million parameters on four GPUs, not run."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

import model_registry
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.model_size import parameter_counts
from lingvo_pipe.pipeline.devices import stage_devices
from lingvo_pipe.pipeline.devices.device_names import device_names

NUM_STAGES = 4
DEVICES = [f"gpu:{i}" for i in range(NUM_STAGES)]
AUXILIARY_HEAD = 1_786_137


def _params() -> Any:
    return model_registry.GetParams("image.imagenet.AmoebaNetB557M", "Train")


def test_it_has_the_published_number_of_parameters() -> None:
    cells = _params().task.pipeline.cell_tpl
    counts = dict(zip([p.name for p in cells], parameter_counts(cells), strict=True))
    assert counts.pop("auxiliary_head") == AUXILIARY_HEAD
    assert sum(counts.values()) == 557_286_057


@pytest.fixture(scope="module")
def emitted() -> Any:
    """Returns the task and the nodes of its pipeline's graph; needs no GPU."""
    params = _params()
    params.task.pipeline.devices = DEVICES
    with pytest.MonkeyPatch.context() as patch, tf.Graph().as_default():
        patch.setattr(stage_devices, "_check_present", lambda names: None)
        task = params.task.Instantiate()
        batch = tf.nest.map_structure(
            lambda spec: tf.compat.v1.placeholder(spec.dtype, spec.shape),
            params.input.Instantiate().element_spec,
        )
        with ForwardContext(step=tf.constant(3, tf.int64)):
            task.ComputeGradients(task.Values(), batch)
    (function,) = task.pipeline.functions
    return task, function.graph.as_graph_def().node


@pytest.mark.exhaustive
def test_each_variable_is_on_the_device_of_its_stage(emitted: Any) -> None:
    task, _ = emitted
    owners = [name.full for name in device_names(DEVICES)]
    assert task.pipeline.devices == owners
    for i, cell in enumerate(task.pipeline.cells):
        owner = owners[task.pipeline.stage_of_cell(i)]
        assert {v.device for v in tf.nest.flatten(cell.vars)} == {owner}


@pytest.mark.exhaustive
def test_each_stage_has_a_loop_on_its_device(emitted: Any) -> None:
    _, nodes = emitted
    loops = [node.device for node in nodes if node.op == "While"]
    assert sorted(loops) == [name.full for name in device_names(DEVICES)]
