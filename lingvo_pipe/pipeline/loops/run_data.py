"""Arguments and results of a pipeline's run, of its loops, and of a stage.

    RunArguments -> LoopArguments -loops-> StageResults -> LoopResults -> RunResults

In a run with updates, stages change their own weights after each of N steps.

Shapes: M is the number of micro-batches. With updates, M counts the micro-batches of
all N steps. Tensors of micro-batches are stacked, `[M, ...]`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from lingvo_pipe.core.nests import map_present, present
from lingvo_pipe.pipeline.loops.stash import Pack
from lingvo_pipe.pipeline.schedules.table import FedTable

_STACKED = ["output_gradients", "first_examples", "num_examples", "inputs", "targets"]


class RunArguments(NamedTuple):
    """The arguments of one run of a pipeline."""

    thetas: Sequence[Any]  # Weights of each layer, tensors or variables.
    step: Any  # [] integer or None; `[M]` with updates.
    batch_size: Any  # [] int32, number of examples of a step.
    # `[M]` int64, position in the mini-batch of each micro-batch's first example.
    first_examples: Any
    num_examples: Any  # `[M]` int32, numbers of rows without padding, or None.
    inputs: Any  # Positional inputs of the first layer, by micro-batch.
    targets: Any  # Targets of the loss, by micro-batch.
    # Gradients of the differentiable outputs, by micro-batch.
    output_gradients: Sequence[Any] = ()
    micro_batches_per_step: Any = None  # [] int32 with updates.

    @property
    def batch(self) -> list[Any]:
        """The mini-batch's inputs and targets, ordered by their values' numbers."""
        return present((self.inputs, self.targets))

    def map_stacked(self, function: Any) -> "RunArguments":
        """Returns the arguments with `function` applied to all that are `[M, ...]`."""
        has_steps = self.step is not None and self.step.shape.rank
        names = [*_STACKED, "step"] if has_steps else _STACKED
        fields = {name: getattr(self, name) for name in names}
        return self._replace(**map_present(function, fields))


class LoopArguments(NamedTuple):
    """The arguments of the loops, for one batch shard or for the mini-batch."""

    tables: Sequence[FedTable]  # The column of the schedule, by device.
    weights: Any  # Packed weights, by stage and layer.
    run: RunArguments  # Without `thetas`.
    # [] or None, the factor of auxiliary losses; `[M]` with updates, if there are such
    # losses.
    loss_scale: Any = None
    # `[N]` float64, divisors of each step's accumulators, with updates.
    divisors: Any = None


class StageResults(NamedTuple):
    """The results of one stage after a run."""

    # Packed accumulators by layer; empty without backward passes, or with updates.
    gradients: Sequence[Pack]
    # Sums by layer; with updates, they are stacked by step.
    sums: Sequence[list[tf.Tensor]]
    # With updates, the update's notes, stacked by step; otherwise empty.
    notes: Sequence[tf.Tensor]
    outputs: Sequence[tf.Tensor]  # The last stage's output values, by micro-batch.
    # Gradients of the mini-batch's inputs, by value; each is stacked by micro-batch.
    input_gradients: Mapping[int, tf.Tensor]


class LoopResults(NamedTuple):
    """The results of all loops, for one batch shard or for the mini-batch."""

    stages: Sequence[StageResults]
    # For each device `[operations, 3]` float64 seconds: when each operation began to
    # wait, started and ended.
    times: Sequence[tf.Tensor]

    @property
    def input_gradients(self) -> dict[int, tf.Tensor]:
        """Gradients of the mini-batch's inputs, by value, stacked by micro-batch."""
        return {k: x for stage in self.stages for k, x in stage.input_gradients.items()}


class RunResults(NamedTuple):
    """The results of one run of a pipeline."""

    # Gradients of the mean loss, for each layer in theta's structure. They are None for
    # untrained weights, and without a backward pass for all. Empty with updates.
    gradients: Sequence[Any]
    # NestedMap(name=(mean, weight)) over the mini-batch; with updates stacked by step.
    metrics: Any
    # Sums by the accumulators' paths; empty with updates, because variables hold them.
    accumulated: Mapping[str, tf.Tensor]
    # Outputs of the last layer, by micro-batch; None with a loss or a backward pass.
    outputs: Any
    # Gradients in the structure of the inputs, by micro-batch; None unless asked for.
    input_gradients: Any
    # With updates, the notes of each stage; see `StageResults`.
    notes: Sequence[Sequence[tf.Tensor]]
    times: Sequence[tf.Tensor]  # See `LoopResults`; one replica after another.


def table_spec(table: FedTable) -> FedTable:
    """Returns the spec of a loop's table, for any number of operations."""
    return FedTable(
        tf.TensorSpec([None, 4], tf.int32),
        tf.TensorSpec(table.num_slots.shape, tf.int32),
    )
