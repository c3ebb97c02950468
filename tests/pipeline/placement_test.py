"""Placement of operations in emitted graphs, for devices that need not exist."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.framework import kernels  # There is no public way to ask.

from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.pipeline.devices import stage_devices
from lingvo_pipe.pipeline.devices.device_names import device_name, device_names
from lingvo_pipe.pipeline.devices.stage_devices import loop_device
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from tests.pipeline.example_layers import (
    image_batch,
    image_cells,
    loss_fn,
    state_batch,
    state_cells,
)

PLACES = [
    ["cpu:0", "cpu:1"],
    ["gpu:0", "gpu:1"],
    ["tpu:0", "tpu:1"],
    ["worker:0/cpu:0", "worker:1/cpu:0"],
    ["worker:1/gpu:0", "worker:0/gpu:3"],
    ["cpu:0", "gpu:0"],
    ["gpu:2", "tpu:0"],
]
# Places of which the others have all.
FURTHER = [["worker:0/cpu:0", "worker:1/cpu:0"], ["cpu:0", "gpu:0"]]
# Cells, a batch and the schedule, by name.
MODELS: dict[str, tuple[Any, Any, str]] = {
    "images": (
        functools.partial(image_cells, num_convolutions=1),
        image_batch,
        "gpipe",
    ),
    "maps": (state_cells, state_batch, "zero_bubble"),
}


class Emitted:
    """The emitted graph of a training step, which does not run.

    Attributes:
        devices: full names, one per stage.
        layer: the pipeline.
        nodes: nodes of the pipeline's function.
        functions: all functions that it calls, directly or not, by name.
    """

    def __init__(self, places: list[str], model: str):
        cells, make_batch, schedule = MODELS[model]
        self.devices = [name.full for name in device_names(places)]
        with tf.Graph().as_default():
            self.layer = (
                PipeliningLayer.Params()
                .Set(
                    name="pipe",
                    cell_tpl=cells(),
                    splits=2,
                    num_micro_batches=4,
                    schedule=schedule,
                    devices=places,
                )
                .Instantiate()
            )
            inputs, targets = make_batch(8)
            with ForwardContext(step=tf.constant(3, tf.int64)):
                values = tf.nest.map_structure(_read, self.layer.vars)
                self.layer.ComputeGradients(values, inputs, targets, loss_fn)
        (function,) = self.layer.functions
        graph_def = function.graph.as_graph_def()
        self.nodes = graph_def.node
        self.functions = {f.signature.name: f for f in graph_def.library.function}

    def loops(self) -> dict[str, list[Any]]:
        """Returns by device the nodes that run where its loop does."""
        found: dict[str, list[Any]] = {}
        for node in self.nodes:
            if node.op == "While":
                own = [*self._within(node), node]
                found.setdefault(node.device, []).extend(own)
        return found

    def _within(self, node: Any) -> Iterator[Any]:
        """Yields nodes of the bodies and branches of a node, but not of their calls."""
        if node.op not in ("While", "Case", "StatelessCase", "If", "StatelessIf"):
            return
        for attribute in node.attr.values():
            for function in [attribute.func, *attribute.list.func]:
                if function.name:
                    for inner in self.functions[function.name].node_def:
                        yield inner
                        yield from self._within(inner)


def _read(variable: tf.Variable) -> tf.Tensor:
    with tf.device(variable.device):
        return variable.read_value()


def _cases() -> Iterator[Any]:
    """Yields places and models: in the fast suite the models take turns."""
    for i, places in enumerate(PLACES):
        for j, model in enumerate(MODELS):
            is_fast = (i + j) % 2 == 0 and places not in FURTHER
            marks = () if is_fast else pytest.mark.exhaustive
            yield pytest.param((places, model), id=f"{places}-{model}", marks=marks)


@pytest.fixture(scope="module", params=_cases())
def emitted(request: pytest.FixtureRequest) -> Emitted:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage_devices, "_check_present", lambda names: None)
        return Emitted(*request.param)


def test_each_stage_is_on_its_device(emitted: Emitted) -> None:
    cells = emitted.layer.cells
    for i, cell in enumerate(cells):
        device = emitted.devices[emitted.layer.stage_of_cell(i)]
        for variable in tf.nest.flatten(cell.vars):
            assert variable.device == device
    owners = [loop_device(device) for device in emitted.devices]
    loops = emitted.loops()
    assert sorted(loops) == sorted(set(owners))
    # Between processes messages are relayed, on the device that receives them.
    are_relayed = len({device_name(owner).worker for owner in owners}) > 1
    for owner, nodes in loops.items():
        boundaries = {"Send": "send_device", "Recv": "recv_device"}
        messages = [node for node in nodes if node.op in boundaries]
        assert messages
        for node in messages:
            assert node.attr[boundaries[node.op]].s.decode() == owner
        peers = [
            sorted(node.attr[end].s.decode() for end in boundaries.values())
            for node in messages
        ]
        allowed = [sorted(owners), [owner, owner]]
        assert all(pair in allowed for pair in peers)
        assert sorted(owners) in peers
        assert ([owner, owner] in peers) == (are_relayed or len(set(owners)) == 1)


def test_only_tpus_have_their_layers_compiled(emitted: Emitted) -> None:
    compiled = {
        name for name, f in emitted.functions.items() if f.attr["_XlaMustCompile"].b
    }
    calls = [
        node
        for function in emitted.functions.values()
        for node in function.node_def
        if node.op.endswith("PartitionedCall") and node.attr["f"].func.name in compiled
    ]
    tpus = [device for device in emitted.devices if "TPU" in device]
    assert {node.device for node in calls} == set(tpus)
    products = {
        name
        for name, function in emitted.functions.items()
        if any(node.op == "MatMul" for node in function.node_def)
    }
    assert products
    if len(tpus) == len(emitted.devices):
        assert products <= compiled
    if not tpus:
        assert not compiled


def test_devices_have_kernels_for_their_loops(emitted: Emitted) -> None:
    """Within a loop all operations are on its device, so each needs a kernel."""
    if not _has_kernel("MatMul", "GPU", {"T": tf.float32.as_datatype_enum}):
        pytest.skip("this build of TensorFlow has no kernels for GPUs")
    for device, nodes in emitted.loops().items():
        kind = tf.DeviceSpec.from_string(device).device_type
        missing = {
            (node.op, str(_types(node)))
            for node in nodes
            if not _has_kernel(node.op, kind, _types(node))
        }
        assert not missing


def test_the_mutex_is_on_a_processor(emitted: Emitted) -> None:
    locks = [node for node in emitted.nodes if "Mutex" in node.op]
    assert len(locks) == 3
    kinds = {tf.DeviceSpec.from_string(node.device).device_type for node in locks}
    assert kinds == {"CPU"}


def _types(node: Any) -> dict[str, int]:
    return {name: value.type for name, value in node.attr.items() if value.type}


def _has_kernel(op: str, kind: str, types: dict[str, int]) -> bool:
    if op in ("_Arg", "_Retval", "Placeholder"):  # What a function is made of.
        return True
    return any(
        kernel.device_type in (kind, "DEFAULT")
        and all(
            types.get(constraint.name) in constraint.allowed_values.list.type
            for constraint in kernel.constraint
        )
        for kernel in kernels.get_registered_kernels_for_op(op).kernel
    )
