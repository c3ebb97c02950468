"""What a pipeline is built from."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.pipeline.devices.device_names import device_name
from lingvo_pipe.pipeline.homes import homes_in_turn
from lingvo_pipe.pipeline.schedules.table import Table
from lingvo_pipe.pipeline.tracing.loss_sums import LossFunction
from lingvo_pipe.pipeline.update_function import Update

# Where the mini-batch is that this process has read.
OWN_CPU = device_name("cpu:0").full


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a pipeline is built from.

    Attributes:
        layers: all layers, in order.
        ends: of the stages.
        replicas: for each replica full names of devices, one for each stage.
        recomputed: for each layer, whether it is where the schedule recomputes.
        jit_compile: for each stage, whether XLA compiles its layers.
        name: of its channels, and of the lock that those of one name share.
        batch_dim: the inputs' dimension of examples.
        state_dtype: see `LayerFunctions`.
        tables: of each device; see `make_tables`.
        loss_fn: see `trace_loss`; None: outputs are wanted instead of metrics.
        do_eval: whether layers run in evaluation.
        trains: whether the schedule has a backward. Without a loss it begins from
            given gradients of the outputs.
        input_gradients: whether the gradients of the inputs are wanted.
        update: what changes weights, in a schedule that has UPDATEs.
        num_parts: into how many parts the mini-batch is cut; see `replicas`.
        inputs_home: the device where it is.
    """

    layers: Sequence[BaseLayer]
    ends: Sequence[int]
    replicas: Sequence[Sequence[str]]
    recomputed: Sequence[bool]
    jit_compile: Sequence[bool]
    name: str
    batch_dim: int = 0
    state_dtype: tf.DType | None = None
    tables: Sequence[Table] = ()
    loss_fn: LossFunction | None = None
    do_eval: bool = False
    trains: bool = False
    input_gradients: bool = False
    update: Update | None = None
    num_parts: int = 1
    inputs_home: str = OWN_CPU

    @property
    def devices(self) -> Sequence[str]:
        """Of the first replica's stages."""
        return self.replicas[0]

    @property
    def parts_per_replica(self) -> int:
        """How many parts each replica runs, one after another."""
        return self.num_parts // len(self.replicas)

    @functools.cached_property
    def homes(self) -> list[str]:
        """For each layer the device of its weights."""
        return homes_in_turn(self.ends, self.replicas)


def by_stage(of_layers: Sequence[Any], ends: Sequence[int]) -> list[list[Any]]:
    """What belongs to layers, as a list for each stage."""
    return [list(of_layers[a:b]) for a, b in itertools.pairwise([0, *ends])]
