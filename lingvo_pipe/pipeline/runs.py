"""The three ways to run a pipeline, and what a gradient tape around each sees.

outputs     forward; a tape's gradient runs the pipeline again, forward and backward
metrics     forward, with the loss; there is no gradient to take
training    forward and backward, with the loss; likewise
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.layers import forward_context
from lingvo_pipe.layers.forward_context import ForwardContext
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.optional_nest import map_present
from lingvo_pipe.pipeline.boundary_bytes import Bytes
from lingvo_pipe.pipeline.devices.stage_devices import run_graphs_as_they_are
from lingvo_pipe.pipeline.diagnosis import may_be_diagnosed
from lingvo_pipe.pipeline.function_cache import FunctionCache
from lingvo_pipe.pipeline.outer_gradient import with_gradient
from lingvo_pipe.pipeline.pipeline_function import PipelineFunction
from lingvo_pipe.pipeline.plan import Plan
from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.schedules.table import make_tables
from lingvo_pipe.pipeline.tracing.loss_function import check_loss_function
from lingvo_pipe.pipeline.tracing.loss_sums import LossFunction
from lingvo_pipe.pipeline.tracing.trace import differentiable


class Runs:
    """Runs one pipeline; arguments and results are those of `PipelineFunction`.

    Attributes:
        plan: what is run.
        cache: the functions that were built.
    """

    def __init__(self, plan: Plan):
        """Initialises the runs.

        Args:
            plan: of which all but the tables, the loss and what is wanted holds for
                every run.
        """
        # The same bytes for every number of stages need it, whoever made the devices.
        run_graphs_as_they_are()
        self.plan = plan
        self.cache = FunctionCache(plan)

    def outputs(self, schedule: Schedule, arguments: NestedMap) -> Any:
        """The outputs of a forward run, stacked by micro-batch.

        Args:
            schedule: for training; its forward part is run.
            arguments: the arguments.
        """
        context = forward_context.current()
        stopped = self._stopped(arguments)
        result = self._run(context, schedule.forward_part(), stopped)
        for path, total in result.accumulated.items():
            context.accumulate(path, total)

        def gradients(output_gradients: list[tf.Tensor]) -> list[list[Any]]:
            given = NestedMap(stopped, output_gradients=output_gradients)
            back = self._run(context, schedule, given, input_gradients=True)
            inputs = differentiable(back.input_gradients)
            return [*self._by_home(back.gradients).values(), inputs]

        return self._seen_by_tapes(result.outputs, arguments, gradients)

    def with_loss(
        self,
        schedule: Schedule,
        arguments: NestedMap,
        loss_fn: LossFunction,
        input_gradients: bool = False,
    ) -> NestedMap:
        """Runs a schedule, of training or of evaluation, with a loss."""
        check_loss_function(loss_fn, self.plan.name)
        context = forward_context.current()
        stopped = self._stopped(arguments)
        result = self._run(context, schedule, stopped, loss_fn, input_gradients)
        metrics = self._seen_by_tapes(result.metrics, arguments, _refuse)
        return NestedMap(result, metrics=metrics)

    def peak_bytes(
        self,
        schedule: Schedule,
        arguments: NestedMap,
        loss_fn: LossFunction,
        input_gradients: bool,
    ) -> list[int]:
        """See `PipeliningLayer.PeakBytes`."""
        check_loss_function(loss_fn, self.plan.name)
        do_eval = forward_context.current().do_eval
        return self._function(
            schedule, arguments, loss_fn, do_eval, input_gradients
        ).peak_bytes(schedule)

    def boundary_bytes(
        self,
        schedule: Schedule,
        arguments: NestedMap,
        loss_fn: LossFunction,
        input_gradients: bool,
    ) -> Bytes:
        """See `PipeliningLayer.BoundaryBytes`."""
        check_loss_function(loss_fn, self.plan.name)
        function = self._function(schedule, arguments, loss_fn, False, input_gradients)
        return function.boundary_bytes(len(arguments.first_examples))

    def diagnose(
        self,
        schedule: Schedule,
        arguments: NestedMap,
        loss_fn: LossFunction,
        input_gradients: bool,
    ) -> None:
        """Raises the error of the operation that fails in such a run; see `diagnosis`.

        Args:
            schedule: of training or of evaluation.
            arguments: the arguments.
            loss_fn: the loss.
            input_gradients: whether the run makes those of the inputs.
        """
        check_loss_function(loss_fn, self.plan.name)
        do_eval = forward_context.current().do_eval
        self._function(schedule, arguments, loss_fn, do_eval, input_gradients).diagnose(
            arguments
        )

    def _run(
        self,
        context: ForwardContext,
        schedule: Schedule,
        arguments: NestedMap,
        loss_fn: LossFunction | None = None,
        input_gradients: bool = False,
    ) -> NestedMap:
        do_eval = context.do_eval
        try:
            return self.cache.run(
                schedule, arguments, loss_fn, do_eval, input_gradients
            )
        except tf.errors.OpError as error:
            # Where stages wait for one another, TensorFlow may report that one of them
            # was cancelled, and not why.
            if tf.executing_eagerly() and may_be_diagnosed(error):
                built = self._function(
                    schedule, arguments, loss_fn, do_eval, input_gradients
                )
                if not arguments.output_gradients:
                    with contextlib.suppress(FloatingPointError):
                        built.diagnose(arguments)
            raise

    def _function(
        self,
        schedule: Schedule,
        arguments: NestedMap,
        loss_fn: LossFunction | None,
        do_eval: bool,
        input_gradients: bool,
    ) -> PipelineFunction:
        tables = make_tables(schedule)
        return self.cache.get(tables, arguments, loss_fn, do_eval, input_gradients)

    def _stopped(self, arguments: NestedMap) -> NestedMap:
        """The arguments as no tape sees them, each where it was."""
        thetas = []
        for home, theta in zip(self.plan.homes, arguments.thetas, strict=True):
            with tf.device(home):
                thetas.append(map_present(tf.stop_gradient, theta))
        rest = NestedMap({k: v for k, v in arguments.items() if k != "thetas"})
        return NestedMap(map_present(tf.stop_gradient, rest), thetas=thetas)

    def _seen_by_tapes(self, results: Any, arguments: NestedMap, gradients: Any) -> Any:
        # Each where it is: elsewhere it would have to be sent.
        sources = [
            *self._by_home(arguments.thetas).items(),
            (self.plan.inputs_home, differentiable(arguments.inputs)),
        ]
        return with_gradient(results, self.plan.devices[-1], sources, gradients)

    def _by_home(self, of_layers: Sequence[Any]) -> dict[str, list[Any]]:
        """What belongs to the layers, flat, by the devices of their weights."""
        found: dict[str, list[Any]] = {}
        for home, own in zip(self.plan.homes, of_layers, strict=True):
            found.setdefault(home, []).extend(tf.nest.flatten(own))
        return found


def _refuse(output_gradients: list[tf.Tensor]) -> list[Any]:
    raise ValueError(
        "A run of a PipeliningLayer with a loss keeps nothing for a tape; there is no "
        "gradient to take through ComputeMetrics or ComputeGradients. The gradients "
        "are among the results of ComputeGradients; those through FProp can be taken."
    )
