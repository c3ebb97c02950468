"""The functions that a pipeline has built, each for what it was built from."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.built_once import BuiltOnce
from lingvo_pipe.pipeline.pipeline_function import (
    PipelineFunction,
    specs_for_any_number,
)
from lingvo_pipe.pipeline.plan import Plan
from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.schedules.table import Table, make_tables
from lingvo_pipe.pipeline.tracing.loss_sums import LossFunction


class FunctionCache:
    """Runs schedules of one pipeline, building what has not been built before."""

    def __init__(self, plan: Plan):
        """Initialises the cache.

        Args:
            plan: of which all but the tables, the loss and what is wanted holds for
                every run.
        """
        self._plan = plan
        self._functions: BuiltOnce[PipelineFunction] = BuiltOnce(
            plan.name,
            "Give batches of few shapes, and the same loss function instead of a new "
            "lambda in each call.",
        )

    @property
    def functions(self) -> list[PipelineFunction]:
        """What has been built, in order."""
        return self._functions.built

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
        return function(arguments, [table.fed for table in tables])

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
        plan = dataclasses.replace(
            self._plan,
            tables=tables,
            loss_fn=loss_fn,
            do_eval=do_eval,
            trains=any(table.trains for table in tables),
            input_gradients=input_gradients,
        )
        return self._functions.get(key, lambda: PipelineFunction(plan, arguments))
