"""Training of a pipeline for several steps in one graph.

See `schedules/several_steps`: a stage updates its weights as soon as its gradients are
complete, and starts the next step without waiting for the other stages.

Shapes: N steps; B examples and M micro-batches in a mini-batch.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.nests import map_present, pack_present, present, spec_of
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.execution.micro_batches import (
    MicroBatches,
    as_tensors,
    cut_batch,
)
from lingvo_pipe.pipeline.execution.pipeline_function import PipelineFunction
from lingvo_pipe.pipeline.execution.pipeline_runs import PipelineRuns
from lingvo_pipe.pipeline.execution.pipeline_spec import by_stage
from lingvo_pipe.pipeline.loops.run_data import RunArguments, RunResults, table_spec
from lingvo_pipe.pipeline.loops.stage_update import Update
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.pipeline.schedules.check import check
from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.schedules.several_steps import several_steps
from lingvo_pipe.pipeline.schedules.table import FedTable, make_tables
from lingvo_pipe.pipeline.tracing.loss_function import LossFunction, check_loss_function

# `mini-batch -> (positional inputs of the first cell, targets of the loss)`.
Feed = Callable[[Any], tuple[Sequence[Any], Any]]


class PipelineSteps:
    """Training of a pipeline for several steps at a time, with one loss and update."""

    def __init__(
        self,
        pipeline: PipeliningLayer,
        feed: Feed,
        loss_fn: LossFunction,
        update: Update,
    ):
        """Initializes the training of `pipeline`.

        See `Feed` and `Update`. `loss_fn` is as in `ComputeGradients`, but the loss's
        weight must depend only on the targets.

        Raises:
            ValueError: if a stage can't update its weights without the other stages.
        """
        _check_independent(pipeline)
        check_loss_function(loss_fn, pipeline.path)
        self._pipeline = pipeline
        self._feed = feed
        self._loss_fn = loss_fn
        self._runs = PipelineRuns(dataclasses.replace(pipeline.spec, update=update))
        self.schedule = functools.cache(self._schedule)
        self.tables = functools.cache(self._tables)

    @property
    def functions(self) -> list[PipelineFunction]:
        """Functions built so far, one for each set of shapes."""
        return self._runs.functions

    def _schedule(self, num_steps: int) -> Schedule:
        schedule = several_steps(self._pipeline.schedule, num_steps)
        check(schedule)
        return schedule

    def _tables(self, num_steps: int) -> list[FedTable]:
        return [table.fed for table in make_tables(self.schedule(num_steps))]

    @property
    def table_specs(self) -> list[FedTable]:
        """Specs of the devices' tables, which fit any number of steps."""
        return list(map(table_spec, self.tables(1)))

    def run(
        self,
        theta: NestedMap,
        batches: Any,
        first_step: tf.Tensor,
        tables: Sequence[FedTable],
    ) -> RunResults:
        """Trains for N steps.

        `theta` has the variables' own dtypes. `batches` are N mini-batches, of tensors
        `[N, B, ...]`. `first_step` is the first step's number, [] int64. `tables` are
        the devices' tables for N steps, as tensors or arrays (see `self.tables`).
        """
        num_steps = tf.shape(present(batches)[0])[0]
        cut, (inputs, targets) = self._cut(batches)
        steps = first_step + tf.range(tf.cast(num_steps, tf.int64))
        arguments = RunArguments(
            thetas=theta["cells"],
            step=tf.repeat(steps, cut.num_micro_batches),
            first_examples=tf.tile(cut.first_examples, [num_steps]),
            num_examples=(
                tf.tile(cut.num_examples, [num_steps]) if cut.is_ragged else None
            ),
            batch_size=tf.constant(cut.batch_size),
            micro_batches_per_step=tf.constant(cut.num_micro_batches),
            inputs=inputs,
            targets=targets,
        )
        structure = make_tables(self.schedule(1))
        function = self._runs.function(
            structure, arguments, self._loss_fn, do_eval=False, input_gradients=False
        )
        return function(arguments, tables)

    def _cut(self, batches: Any) -> tuple[MicroBatches, Any]:
        """Cuts N mini-batches. Returns (the cut of one of them, (inputs, targets)).

        Inputs and targets are `[N * M, ...]`: the micro-batches of all mini-batches.
        """
        flat = present(batches)
        p, path = self._pipeline.params, self._pipeline.path
        traced: list[tuple[MicroBatches, Any]] = []

        def cut(*batch: tf.Tensor) -> list[tf.Tensor]:
            inputs, targets = self._feed(pack_present(batches, batch))
            fed = as_tensors((tuple(inputs), targets), path)
            micro_batches = cut_batch(
                fed, p.num_micro_batches, p.micro_batch_size, p.batch_dim, path
            )
            traced.append((micro_batches, map_present(spec_of, fed)))
            return present(micro_batches.split(fed))

        specs = [tf.TensorSpec(x.shape[1:], x.dtype) for x in flat]
        function = tf.function(cut, autograph=False).get_concrete_function(*specs)
        split = tf.map_fn(
            lambda batch: function(*batch),
            flat,
            fn_output_signature=list(map(spec_of, function.outputs)),
        )
        micro_batches, structure = traced[0]
        merged = [tf.reshape(x, [-1, *x.shape[2:]]) for x in split]
        return micro_batches, pack_present(structure, merged)


def _check_independent(pipeline: PipeliningLayer) -> None:
    p, num_batch_shards = pipeline.params, pipeline.spec.layout.num_batch_shards
    stages: dict[Any, int] = {}
    shared = {
        path
        for k, cells in enumerate(by_stage(pipeline.cells, pipeline.boundaries))
        for cell in cells
        for path, variable in cell.VariablePaths().items()
        if stages.setdefault(variable.ref(), k) != k
    }
    rules = (
        (
            "num_replicas" if p.num_batch_shards is None else "num_batch_shards",
            "1, since each stage updates its weights by itself",
            num_batch_shards if num_batch_shards > 1 else None,
        ),
        (
            "before_tpl",
            "no layers, which would be in no stage",
            p.before_tpl,
        ),
        ("tied", "no weights of several stages", sorted(shared)),
    )
    for name, expected, got in rules:
        if got:
            raise UserValueError(
                path=f"{pipeline.path}.{name}",
                expected=expected,
                got=got,
                hint="Or train one step at a time, by task.train.steps_per_loop=1.",
            )
