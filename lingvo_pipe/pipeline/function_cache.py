"""The functions that a pipeline has built, each for what it was built from."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.pipeline_function import (
    PipelineFunction,
    specs_for_any_number,
)
from lingvo_pipe.pipeline.plan import Plan
from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.schedules.table import Table, make_tables
from lingvo_pipe.pipeline.tracing.loss_function import LossFunction

# Beyond so many it looks like an oversight; a training and its evaluation make two.
_MANY = 8


class FunctionCache:
    """Runs schedules of one pipeline, building what has not been built before."""

    def __init__(self, plan: Plan):
        """Initialises the cache.

        Args:
            plan: of which all but the tables, the loss and what is wanted holds for
                every run.
        """
        self._plan = plan
        self._functions: dict[Any, PipelineFunction] = {}

    @property
    def functions(self) -> list[PipelineFunction]:
        """What has been built, in order."""
        return list(self._functions.values())

    def run(
        self,
        schedule: Schedule,
        arguments: NestedMap,
        loss_fn: LossFunction | None,
        do_eval: bool,
        input_gradients: bool = False,
    ) -> NestedMap:
        """Runs a checked schedule; see `PipelineFunction`."""
        tables = make_tables(schedule)
        function = self.get(tables, arguments, loss_fn, do_eval, input_gradients)
        return function(arguments, tables)

    def get(
        self,
        tables: Sequence[Table],
        arguments: NestedMap,
        loss_fn: LossFunction | None,
        do_eval: bool,
        input_gradients: bool,
    ) -> PipelineFunction:
        """The function for such a run, which is built if need be."""
        specs = repr(specs_for_any_number(arguments))
        structure = tuple(table.structure for table in tables)
        key = structure, loss_fn, do_eval, input_gradients, specs
        if key not in self._functions:
            self._warn_of_many()
            plan = dataclasses.replace(
                self._plan,
                tables=tables,
                loss_fn=loss_fn,
                do_eval=do_eval,
                trains=any(table.trains for table in tables),
                input_gradients=input_gradients,
            )
            self._functions[key] = PipelineFunction(plan, arguments)
        return self._functions[key]

    def _warn_of_many(self) -> None:
        if len(self._functions) == _MANY:
            tf.get_logger().warning(
                "%s was built for %d combinations of shapes and loss functions, each "
                "kept; building takes long. Give batches of few shapes, and the same "
                "loss function instead of a new lambda in each call.",
                self._plan.name,
                len(self._functions),
            )
