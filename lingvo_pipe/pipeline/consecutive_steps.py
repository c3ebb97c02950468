"""Trains a pipeline several steps in one graph.

See `schedules/several_steps`: a stage changes its weights as soon as its gradients are
whole, and goes on with the next step, whatever the other stages do.

Shapes: N steps; B examples in a mini-batch, M micro-batches of each.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.optional_nest import map_present, pack_present, present, spec_of
from lingvo_pipe.pipeline.function_cache import FunctionCache
from lingvo_pipe.pipeline.micro_batches import MicroBatches, as_tensors, cut_batch
from lingvo_pipe.pipeline.pipeline_function import PipelineFunction
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.pipeline.plan import by_stage
from lingvo_pipe.pipeline.schedules.check import check
from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.schedules.several_steps import several_steps
from lingvo_pipe.pipeline.schedules.table import make_tables
from lingvo_pipe.pipeline.tracing.loss_function import check_loss_function
from lingvo_pipe.pipeline.tracing.loss_sums import LossFunction
from lingvo_pipe.pipeline.update_function import Update

# From a mini-batch to the positional inputs of the first cell, and the loss's targets.
Feed = Callable[[Any], tuple[Sequence[Any], Any]]


class ConsecutiveSteps:
    """The steps of one pipeline, with one loss and one update."""

    def __init__(
        self,
        pipeline: PipeliningLayer,
        feed: Feed,
        loss_fn: LossFunction,
        update: Update,
    ):
        """Initialises the steps.

        Args:
            pipeline: what is trained.
            feed: what it is given of a mini-batch.
            loss_fn: see `PipeliningLayer.ComputeGradients`. Its weight must follow from
                the targets alone.
            update: what changes the weights of a stage.

        Raises:
            ValueError: if a stage can't change its weights by itself.
        """
        _check_alone(pipeline)
        check_loss_function(loss_fn, pipeline.path)
        self._pipeline = pipeline
        self._feed = feed
        self._loss_fn = loss_fn
        plan = dataclasses.replace(pipeline.plan, update=update)
        self._cache = FunctionCache(plan)
        self.schedule = functools.cache(self._schedule)
        self.tables = functools.cache(self._tables)

    @property
    def functions(self) -> list[PipelineFunction]:
        """The functions built so far, one for each set of shapes."""
        return self._cache.functions

    def _schedule(self, num_steps: int) -> Schedule:
        """That of so many steps."""
        schedule = several_steps(self._pipeline.schedule, num_steps)
        check(schedule)
        return schedule

    def _tables(self, num_steps: int) -> list[NestedMap]:
        """What a call for so many steps is to be given."""
        return [table.fed for table in make_tables(self.schedule(num_steps))]

    def run(
        self,
        theta: NestedMap,
        batches: Any,
        first_step: tf.Tensor,
        tables: Sequence[NestedMap],
    ) -> NestedMap:
        """Makes the steps.

        Args:
            theta: weights, in the variables' own dtypes.
            batches: the mini-batches, `[N, B, ...]`.
            first_step: [] int64, the number of the first step.
            tables: see `tables`; tensors or arrays.

        Returns:
            See `results_of_steps`.
        """
        num_steps = tf.shape(present(batches)[0])[0]
        cut, (inputs, targets) = self._cut(batches)
        own_steps = first_step + tf.range(tf.cast(num_steps, tf.int64))
        arguments = NestedMap(
            thetas=theta["cells"],
            step=tf.repeat(own_steps, cut.num_micro_batches),
            first_examples=tf.tile(cut.first_examples, [num_steps]),
            num_examples=(
                tf.tile(cut.num_examples, [num_steps]) if cut.is_ragged else None
            ),
            batch_size=tf.constant(cut.batch_size),
            micro_batches_per_step=tf.constant(cut.num_micro_batches),
            inputs=inputs,
            targets=targets,
            output_gradients=[],
        )
        structure = make_tables(self.schedule(1))
        function = self._cache.get(
            structure, arguments, self._loss_fn, do_eval=False, input_gradients=False
        )
        return function(arguments, tables)

    def _cut(self, batches: Any) -> tuple[MicroBatches, Any]:
        """How each mini-batch is cut; and inputs and targets, `[N * M, .. b ..]`."""
        flat = present(batches)
        cuts: list[MicroBatches] = []
        structures: list[Any] = []

        def cut(*batch: tf.Tensor) -> list[tf.Tensor]:
            fed = self._fed(pack_present(batches, batch))
            cuts.append(self._how(fed))
            structures.append(map_present(spec_of, fed))
            return present(cuts[-1].split(fed))

        specs = [tf.TensorSpec(x.shape[1:], x.dtype) for x in flat]
        function = tf.function(cut, autograph=False).get_concrete_function(*specs)
        split = tf.map_fn(
            lambda batch: function(*batch),
            flat,
            fn_output_signature=list(map(spec_of, function.outputs)),
        )
        return cuts[0], pack_present(
            structures[0], [tf.reshape(x, [-1, *x.shape[2:]]) for x in split]
        )

    def _fed(self, batch: Any) -> Any:
        inputs, targets = self._feed(batch)
        return as_tensors((tuple(inputs), targets), self._pipeline.path)

    def _how(self, fed: Any) -> MicroBatches:
        p, path = self._pipeline.params, self._pipeline.path
        return cut_batch(
            fed, p.num_micro_batches, p.micro_batch_size, p.batch_dim, path
        )


def _check_alone(pipeline: PipeliningLayer) -> None:
    """Raises ValueError unless each stage's weights are its own."""
    if pipeline.plan.num_parts > 1:
        raise ValueError(
            "In a graph of several steps each stage changes its own weights; "
            f"{pipeline.path} has {pipeline.plan.num_parts} parts of a mini-batch, "
            "whose totals are added up first. Set num_replicas to 1 and num_parts to "
            "None, or train one step at a time: task.train.steps_per_loop=1."
        )
    if pipeline.before:
        raise ValueError(
            "In a graph of several steps each stage changes its own weights; those of "
            f"{pipeline.path}.before_tpl are in no stage. Put the layers into "
            "cell_tpl, or train one step at a time: task.train.steps_per_loop=1."
        )
    stages: dict[Any, int] = {}
    shared = set()
    for k, cells in enumerate(by_stage(pipeline.cells, pipeline.ends)):
        for cell in cells:
            for path, variable in cell.VariablePaths().items():
                if stages.setdefault(variable.ref(), k) != k:
                    shared.add(path)
    if shared:
        raise ValueError(
            "In a graph of several steps each stage changes its own weights; "
            f"{', '.join(sorted(shared))} are in more than one. Untie them in "
            f"{pipeline.path}.tied, or train one step at a time, as overlapping blocks "
            "on several stages must be: task.train.steps_per_loop=1."
        )
