"""PipelineSpec: stages, their devices in each replica, and the owners of weights.

devices       a b | c d       R = 2 replicas of K = 2 stages
stage 0       a     c         weights of its cells: owned by a, c, a, ...
stage 1       b     d         weights of its cells: owned by b, d, b, ...

The owner of a weight is the device that stores it.
"""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.nests import present
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.forward_context import row_dim
from lingvo_pipe.pipeline.devices.device_names import device_name, device_names
from lingvo_pipe.pipeline.loops.stage_update import Update
from lingvo_pipe.pipeline.loops.traced_layers import TracedLayers
from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.schedules.table import Table
from lingvo_pipe.pipeline.tracing.layer_function import LayerFunctions
from lingvo_pipe.pipeline.tracing.loss_function import LossFunction
from lingvo_pipe.pipeline.tracing.trace import CallContext

# The device of the mini-batch that this process has read.
OWN_CPU = device_name("cpu:0").full


@dataclasses.dataclass(frozen=True)
class Layout:
    """Stages, their devices and their training schedule."""

    boundaries: Sequence[int]  # The stage boundaries.
    replicas: Sequence[Sequence[str]]  # Full names of devices, by replica and stage.
    num_batch_shards: int
    schedule: Schedule
    # The schedule if gradients cross blocks: without a loss, and in evaluation.
    across_blocks: Schedule
    recomputed: Sequence[bool]  # See `CellRoles`.
    offloaded: Sequence[bool]  # See `CellRoles`.

    @property
    def devices(self) -> Sequence[str]:
        """Device of each stage, in the first replica."""
        return self.replicas[0]

    @property
    def shards_per_replica(self) -> int:
        """Number of batch shards that each replica runs one after another."""
        return self.num_batch_shards // len(self.replicas)

    @functools.cached_property
    def owners(self) -> list[str]:
        """The owner of each cell's weights, which is a device of the cell's stage."""
        return owners_round_robin(self.boundaries, self.replicas)


@dataclasses.dataclass(frozen=True)
class PipelineSpec:
    """Everything that a pipeline is built from.

    Pipelines of the same name share the mutex and the prefix of channels. If `trains`,
    the schedule has backward passes. Without a loss, the backward passes start from
    gradients of the outputs, which are arguments.
    """

    layers: Sequence[BaseLayer]
    layout: Layout
    jit_compile: Sequence[bool]  # For each stage, whether XLA compiles its layers.
    name: str
    batch_dim: int = 0  # Dimension of the examples in the inputs.
    state_dtype: tf.DType | None = None  # See `LayerFunctions`.
    tables: Sequence[Table] = ()  # One for each device; see `make_tables`.
    loss_fn: LossFunction | None = None  # See `trace_loss`; None to return the outputs.
    do_eval: bool = False
    trains: bool = False
    input_gradients: bool = False  # Whether runs return gradients of the inputs.
    update: Update | None = None  # Updates weights, in a schedule with UPDATEs.
    inputs_device: str = OWN_CPU  # Device of the mini-batch.

    def trace_layers(
        self,
        thetas: Sequence[Any],
        context: CallContext,
        inputs: Any,
        targets: Any = None,
        **options: Any,
    ) -> TracedLayers:
        """Traces the layers. See `TracedLayers`, and `LayerFunctions` for `options`."""
        shape = present((inputs, targets))[0].shape
        functions = LayerFunctions(
            do_eval=self.do_eval,
            trains=self.trains,
            batch_dim=self.batch_dim,
            num_rows=shape[row_dim(shape.rank, self.batch_dim)],
            state_dtype=self.state_dtype,
            loss_fn=self.loss_fn,
            **options,
        )
        needed = self.input_gradients
        return TracedLayers(
            self.layers, thetas, context, inputs, targets, functions, needed
        )


def by_stage(layer_items: Sequence[Any], boundaries: Sequence[int]) -> list[list[Any]]:
    """Groups items, one per layer, into a list per stage."""
    return [list(layer_items[a:b]) for a, b in itertools.pairwise([0, *boundaries])]


def replica_devices(
    devices: Sequence[str], num_replicas: int, device_of_stage: Sequence[int]
) -> list[list[str]]:
    """Returns the devices of each replica, by stage.

    `devices` are full names, replica by replica. `device_of_stage` has the index of
    each stage's device within a replica.

    Raises:
        ValueError: if a stage is on devices of different kinds, because they may round
            differently, or if there are several replicas on TPUs.
    """
    size = len(devices) // num_replicas
    replicas = [
        [devices[r * size + k] for k in device_of_stage] for r in range(num_replicas)
    ]
    for stage, peer_devices in enumerate(zip(*replicas, strict=True)):
        names = device_names(peer_devices)
        if num_replicas > 1 and names[0].kind == "TPU":
            raise UserValueError(
                path="num_replicas",
                expected="1 on TPUs",
                got=num_replicas,
                hint="Use more stages instead.",
            )
        if len({name.kind for name in names}) > 1:
            raise UserValueError(
                path="devices",
                expected=f"one kind of device for stage {stage} in all replicas",
                got=[name.short for name in names],
                hint="Name the devices replica by replica, in the same order.",
            )
    return replicas


def owners_round_robin(
    boundaries: Sequence[int], replicas: Sequence[Sequence[str]]
) -> list[str]:
    """Returns the owner of each cell's weights. The devices of a stage take turns."""
    return [
        replicas[i % len(replicas)][k]
        for k, (start, end) in enumerate(itertools.pairwise([0, *boundaries]))
        for i in range(end - start)
    ]
