"""The data of a pipeline's run: arguments and results, of all, a loop, or a stage.

    RunArguments -> LoopArguments -loops-> StageResults -> LoopResults -> RunResults

Shapes: M micro-batches; N steps, if stages update their own weights. Then M counts the
micro-batches of all steps. Tensors of micro-batches are stacked, `[M, ...]`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from lingvo_pipe.core.nests import map_present
from lingvo_pipe.pipeline.loops.stash import Pack
from lingvo_pipe.pipeline.schedules.table import FedTable

# Stacked by micro-batch in the arguments of a run and of loops.
_STACKED = ("output_gradients", "first_examples", "num_examples")


class RunArguments(NamedTuple):
    """The arguments of a run.

    Attributes:
        thetas: weights of each layer, tensors or variables.
        step: [] integer or None; `[M]` with updates.
        batch_size: [] int32, number of examples of a step.
        first_examples: `[M]` int64, position in the mini-batch of each micro-batch's
            first example.
        num_examples: `[M]` int32, numbers of rows that are examples; or None.
        inputs: positional inputs of the first layer, by micro-batch.
        targets: targets of the loss, by micro-batch.
        output_gradients: gradients of the differentiable outputs, by micro-batch.
        micro_batches_per_step: [] int32 with updates.
    """

    thetas: Sequence[Any]
    step: Any
    batch_size: Any
    first_examples: Any
    num_examples: Any
    inputs: Any
    targets: Any
    output_gradients: Sequence[Any] = ()
    micro_batches_per_step: Any = None

    def map_stacked(self, function: Any) -> "RunArguments":
        """Returns the arguments, with `function` applied to the stacked ones."""
        has_steps = self.step is not None and self.step.shape.rank
        steps = ["step"] if has_steps else []
        return _map_fields(function, self, [*_STACKED, "inputs", "targets", *steps])


class LoopArguments(NamedTuple):
    """The arguments of the loops of one replica.

    Attributes:
        tables: for each device its column of the schedule.
        weights: for each stage, for each of its layers, the packed weights.
        step, first_examples, num_examples, output_gradients, micro_batches_per_step:
            see `RunArguments`.
        batch: the mini-batch's inputs and targets; an index is a value's number.
        loss_scale: [] or None, the factor of auxiliary losses; `[M]` with updates,
            if there are such losses.
        divisors: `[N]` float64, divisors of each step's accumulators, with updates.
    """

    tables: Sequence[FedTable]
    weights: Any
    step: Any
    first_examples: Any
    num_examples: Any
    batch: Sequence[Any]
    output_gradients: Sequence[Any]
    loss_scale: Any = None
    divisors: Any = None
    micro_batches_per_step: Any = None

    def map_stacked(self, function: Any) -> "LoopArguments":
        """Returns the arguments, with `function` applied to the stacked ones.

        Without updates: with them, step and loss scale are stacked, too.
        """
        return _map_fields(function, self, [*_STACKED, "batch"])


class StageResults(NamedTuple):
    """The results of one stage.

    Attributes:
        gradients: for each layer its packed accumulators; none without backward passes,
            or with updates.
        sums: for each layer its sums; with updates stacked by step.
        notes: with updates the update's notes, stacked by step.
        outputs: the last stage's output values, by micro-batch.
        input_gradients: gradients of the mini-batch's inputs by value, by micro-batch.
    """

    gradients: Sequence[Pack]
    sums: Sequence[list[tf.Tensor]]
    notes: Sequence[tf.Tensor]
    outputs: Sequence[tf.Tensor]
    input_gradients: Mapping[int, tf.Tensor]


class LoopResults(NamedTuple):
    """The results of all loops of a run, or of one replica's.

    Attributes:
        gradients, sums, notes: a list with an item for each stage; see `StageResults`.
        outputs: the output values, by micro-batch.
        input_gradients: by value, by micro-batch.
        times: for each device `[operations, 3]` float64 seconds: when each operation
            began to wait, started and ended.
    """

    gradients: Sequence[Sequence[Pack]]
    sums: Sequence[Sequence[list[tf.Tensor]]]
    notes: Sequence[Sequence[tf.Tensor]]
    outputs: Sequence[tf.Tensor]
    input_gradients: Mapping[int, tf.Tensor]
    times: Sequence[tf.Tensor]


class RunResults(NamedTuple):
    """The results of a run.

    Attributes:
        gradients: gradients of the mean loss, for each layer in theta's structure; None
            for untrained weights, and everywhere without a backward pass; none with
            updates.
        metrics: NestedMap(name=(mean, weight)) over the mini-batch; with updates
            stacked by step.
        accumulated: sums by the accumulators' paths; none with updates, because
            variables hold them.
        outputs: outputs of the last layer, by micro-batch; None with a loss or a
            backward pass.
        input_gradients: gradients in the structure of the inputs, by micro-batch; None
            unless asked for.
        notes: with updates, the notes of each stage; see `StageResults`.
        times: see `LoopResults`; replica by replica.
    """

    gradients: Sequence[Any]
    metrics: Any
    accumulated: Mapping[str, tf.Tensor]
    outputs: Any
    input_gradients: Any
    notes: Sequence[Sequence[tf.Tensor]]
    times: Sequence[tf.Tensor]


def _map_fields(function: Any, arguments: Any, names: Sequence[str]) -> Any:
    """Returns arguments, with `function` applied to the fields of these names."""
    fields = {name: getattr(arguments, name) for name in names}
    return arguments._replace(**map_present(function, fields))


def table_spec(table: FedTable) -> FedTable:
    """Returns the spec of tables for any number of operations."""
    return FedTable(
        tf.TensorSpec([None, 4], tf.int32),
        tf.TensorSpec(table.num_slots.shape, tf.int32),
    )
