"""Build cache: objects that take long to build, reused by later calls."""

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

import tensorflow as tf

from lingvo_pipe.core.garbage import collected_seldom
from lingvo_pipe.pipeline.execution.pipeline_function import (
    PipelineFunction,
    specs_for_any_number,
)
from lingvo_pipe.pipeline.execution.pipeline_spec import PipelineSpec
from lingvo_pipe.pipeline.loops.run_data import RunArguments
from lingvo_pipe.pipeline.schedules.table import Table
from lingvo_pipe.pipeline.tracing.loss_function import LossFunction

Built = TypeVar("Built")

# Logs a warning at this number. A training and its evaluation need two; by Keras, for
# each size of a mini-batch, and again after each `compile`.
_WARN_AT = 16


class BuildCache(Generic[Built]):
    """Built objects, by everything that they depend on."""

    def __init__(self, name: str, hint: str):
        """Initializes an empty cache, with a sentence on how to build fewer objects."""
        self._name = name
        self._hint = hint
        self._built: dict[Hashable, Built] = {}

    @property
    def built(self) -> list[Built]:
        """All objects built so far, in order."""
        return list(self._built.values())

    def get(self, key: Hashable, build: Callable[..., Built], *args: Any) -> Built:
        """Returns the object for a key, built from `args` at the first call."""
        if key not in self._built:
            if len(self._built) == _WARN_AT:
                tf.get_logger().warning(
                    "%s was built for %d different calls; building takes long. %s",
                    self._name,
                    _WARN_AT,
                    self._hint,
                )
            with collected_seldom():
                self._built[key] = build(*args)
        return self._built[key]


class FunctionCache(BuildCache[PipelineFunction]):
    """Functions of one pipeline, built at their first use."""

    def __init__(self, spec: PipelineSpec):
        """Initializes a cache of functions that share `spec` except tables and loss."""
        super().__init__(
            spec.name,
            "Give batches of few shapes, and the same loss function instead of a new "
            "lambda in each call.",
        )
        self._spec = spec

    def function(
        self,
        tables: Sequence[Table],
        arguments: RunArguments,
        loss_fn: LossFunction | None,
        do_eval: bool,
        input_gradients: bool,
    ) -> PipelineFunction:
        """Returns the function for a run with these arguments, built if needed."""
        specs = repr(specs_for_any_number(arguments))
        structure = tuple(table.structure for table in tables)
        key = structure, loss_fn, do_eval, input_gradients, specs
        spec = dataclasses.replace(
            self._spec,
            tables=tables,
            loss_fn=loss_fn,
            do_eval=do_eval,
            trains=any(table.trains for table in tables),
            input_gradients=input_gradients,
        )
        return self.get(key, PipelineFunction, spec, arguments)
