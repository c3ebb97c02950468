"""The three kinds of pipeline runs, and the arguments of a run.

    outputs     forward. A tape's gradient runs the pipeline again, also backward
    metrics     forward, with the loss. Has no gradient
    training    forward and backward, with the loss. Has no gradient

Shapes: B examples in the mini-batch, in M micro-batches.
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.core import trees
from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.core.nests import map_present
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core import forward_context
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.debug.diagnosis import may_be_diagnosed, naming
from lingvo_pipe.pipeline.devices.stage_devices import disable_graph_optimizer
from lingvo_pipe.pipeline.execution.build_cache import BuildCache
from lingvo_pipe.pipeline.execution.custom_gradient import with_gradient
from lingvo_pipe.pipeline.execution.micro_batches import (
    MicroBatches,
    as_tensors,
    cut_batch,
)
from lingvo_pipe.pipeline.execution.pipeline_function import (
    PipelineFunction,
    specs_for_any_number,
)
from lingvo_pipe.pipeline.execution.pipeline_spec import PipelineSpec
from lingvo_pipe.pipeline.loops.run_data import RunArguments, RunResults
from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.schedules.table import Table, make_tables
from lingvo_pipe.pipeline.tracing.loss_function import LossFunction, check_loss_function
from lingvo_pipe.pipeline.tracing.trace import differentiable

_MAX_DIFFERENCES = 3


class PipelineRuns:
    """Runs of one pipeline, by functions that are built at their first use."""

    def __init__(self, spec: PipelineSpec):
        """Initializes the runs. A run replaces fields of `spec`, such as `tables`."""
        # With the optimizer, results' bytes would depend on the number of stages.
        disable_graph_optimizer()
        self.spec = spec
        self._functions: BuildCache[PipelineFunction] = BuildCache(
            spec.name,
            "Give batches of few shapes, and the same loss function instead of a new "
            "lambda in each call.",
        )

    @property
    def functions(self) -> list[PipelineFunction]:
        """Functions built so far, in order."""
        return self._functions.built

    def outputs(
        self, schedule: Schedule, arguments: RunArguments, has_drawn: bool
    ) -> Any:
        """Runs a schedule's forward part. Returns outputs, stacked by micro-batch.

        `has_drawn` says whether the prologue has drawn random numbers.

        Raises:
            ValueError: if layers draw random numbers a second time in this context.
        """
        context = forward_context.current_context()
        thetas = tf.nest.map_structure(tf.convert_to_tensor, arguments.thetas)
        arguments = arguments._replace(thetas=thetas)
        stopped = self._stopped(arguments)
        tables = make_tables(schedule.forward_part())
        function = self.function(tables, stopped, None, context.do_eval, False)
        if function.draws or has_drawn:
            _check_draws_first(context, self.spec.name)
        result = self._call(function, tables, stopped)
        for path, total in result.accumulated.items():
            context.accumulate(path, total)

        def gradients(output_gradients: list[tf.Tensor]) -> list[list[Any]]:
            seeded = stopped._replace(output_gradients=output_gradients)
            back = self._run(context.do_eval, schedule, seeded, input_gradients=True)
            inputs = differentiable(back.input_gradients)
            return [*self._by_owner(back.gradients).values(), inputs]

        return self._with_gradient(result.outputs, arguments, gradients)

    def with_loss(
        self,
        schedule: Schedule,
        arguments: RunArguments,
        loss_fn: LossFunction,
        input_gradients: bool = False,
    ) -> RunResults:
        """Runs a schedule of training or evaluation, with a loss."""
        check_loss_function(loss_fn, self.spec.name)
        do_eval = forward_context.current_context().do_eval
        stopped = self._stopped(arguments)
        result = self._run(do_eval, schedule, stopped, loss_fn, input_gradients)
        metrics = self._with_gradient(result.metrics, arguments, _refuse)
        return result._replace(metrics=metrics)

    def function(
        self,
        tables: Sequence[Table],
        arguments: RunArguments,
        loss_fn: LossFunction | None,
        do_eval: bool,
        input_gradients: bool,
    ) -> PipelineFunction:
        """Returns the function for a run. Builds the function if there is none yet."""
        specs = repr(specs_for_any_number(arguments))
        structure = tuple(table.structure for table in tables)
        key = structure, loss_fn, do_eval, input_gradients, specs
        spec = dataclasses.replace(
            self.spec,
            tables=tables,
            loss_fn=loss_fn,
            do_eval=do_eval,
            trains=any(table.trains for table in tables),
            input_gradients=input_gradients,
        )
        return self._functions.get(key, PipelineFunction, spec, arguments)

    def _run(
        self,
        do_eval: bool,
        schedule: Schedule,
        arguments: RunArguments,
        loss_fn: LossFunction | None = None,
        input_gradients: bool = False,
    ) -> RunResults:
        tables = make_tables(schedule)
        function = self.function(tables, arguments, loss_fn, do_eval, input_gradients)
        return self._call(function, tables, arguments)

    def _call(
        self,
        function: PipelineFunction,
        tables: Sequence[Table],
        arguments: RunArguments,
    ) -> RunResults:
        try:
            return function(arguments, [table.fed for table in tables])
        except tf.errors.OpError as error:
            # Where stages wait for each other, TensorFlow may report only that one of
            # them was cancelled, without the cause.
            may_be_found = tf.executing_eagerly() and may_be_diagnosed(error)
            if may_be_found and not arguments.output_gradients:
                with contextlib.suppress(FloatingPointError):
                    function.diagnose(arguments)
            with naming(f"a step of {self.spec.name}"):
                raise

    def _stopped(self, arguments: RunArguments) -> RunArguments:
        stopped = map_present(tf.stop_gradient, arguments._replace(thetas=[]))
        return stopped._replace(thetas=arguments.thetas)

    def _with_gradient(
        self, results: Any, arguments: RunArguments, gradients: Any
    ) -> Any:
        # Each source stays on its device, or it would have to be sent.
        sources = [
            *((k, _watched(x)) for k, x in self._by_owner(arguments.thetas).items()),
            (self.spec.inputs_device, differentiable(arguments.inputs)),
        ]
        return with_gradient(results, self.spec.layout.devices[-1], sources, gradients)

    def _by_owner(self, thetas: Sequence[Any]) -> dict[str, list[Any]]:
        flat_by_owner: dict[str, list[Any]] = {}
        for owner, theta in zip(self.spec.layout.owners, thetas, strict=True):
            flat_by_owner.setdefault(owner, []).extend(tf.nest.flatten(theta))
        return flat_by_owner


def _watched(weights: list[Any]) -> list[Any]:
    """Returns the tensors that a tape must watch to notice a run.

    A tape must watch all weights that are tensors. Of variables, it needs the value of
    only one trained variable, because the run itself reads the variables.
    """
    if not any(isinstance(x, tf.Variable) for x in weights):
        return weights
    trained = (x for x in weights if isinstance(x, tf.Variable) and x.trainable)
    return [x.value() for x in itertools.islice(trained, 1)]


def _check_draws_first(context: forward_context.ForwardContext, path: str) -> None:
    """Raises ValueError if an earlier run in `context` drew random numbers.

    A run draws the numbers of a context's first forward pass. In a second one, layers
    without a pipeline would draw other numbers.
    """
    if context.count_draw(path, 0):
        raise UserValueError(
            path=path,
            expected="one FProp in a ForwardContext, since layers draw random numbers",
            got=Words("another"),
            hint="Open a ForwardContext for each call. Its first_example, or step, "
            "gives it random numbers of its own.",
        )


def _refuse(output_gradients: list[tf.Tensor]) -> list[Any]:
    raise UserValueError(
        "ComputeMetrics and ComputeGradients have no gradient for an outer tape.",
        hint="Use the gradients that ComputeGradients returns, or FProp.",
    )


def run_arguments(
    p: InstantiableParams,
    path: str,
    theta: NestedMap,
    inputs: Sequence[Any],
    targets: Any,
) -> tuple[MicroBatches, RunArguments]:
    """Returns the cut of a mini-batch, and the arguments of a run.

    Inputs of the first cell and targets of the loss are `[B, ...]` each, or None.

    Raises:
        ValueError: if the context has padding rows, or the mini-batch cannot be cut.
    """
    batch = as_tensors((tuple(inputs), targets), path)
    cut = cut_batch(batch, p.num_micro_batches, p.micro_batch_size, p.batch_dim, path)
    inputs, targets = cut.split(batch)
    context = forward_context.current_context()
    for name in ("num_examples", "vocabulary_size"):
        if getattr(context, name) is not None:
            raise UserValueError(
                path=path,
                expected=f"no {name} in the ForwardContext: micro-batches have padding "
                "rows of their own, and the pipeline's layers all tokens",
                got=Words(name),
                hint="Pass only the rows that are examples.",
            )
    first = 0 if context.first_example is None else context.first_example
    return cut, RunArguments(
        thetas=tf.nest.map_structure(
            lambda x: x if isinstance(x, tf.Variable) else tf.convert_to_tensor(x),
            theta["cells"],
        ),
        step=None if context.step is None else tf.convert_to_tensor(context.step),
        first_examples=tf.cast(first, tf.int64) + cut.first_examples,
        num_examples=tf.constant(cut.num_examples) if cut.is_ragged else None,
        batch_size=tf.constant(cut.batch_size),
        inputs=inputs,
        targets=targets,
    )


def check_theta(theta: Any, variables: Any, path: str) -> None:
    """Raises ValueError unless theta has the structure and shapes of the variables."""
    expected, weights = dict(trees.leaves(variables)), dict(trees.leaves(theta))
    differences = [f"{name} is missing" for name in expected if name not in weights]
    differences += [f"{name} is unknown" for name in weights if name not in expected]
    if not differences and not trees.same_structure(theta, variables):
        differences = ["an empty structure is missing, or a list is a tuple"]
    if not differences:
        differences = [
            f"{name} {_shape_text(weights[name])}, not {tuple(variable.shape)}"
            for name, variable in expected.items()
            if getattr(weights[name], "shape", None) != variable.shape
        ]
    if differences:
        more = len(differences) - _MAX_DIFFERENCES
        ending = f"; and {more} more" if more > 0 else ""
        raise UserValueError(
            path=f"{path}.theta",
            expected="the structure and shapes of vars",
            got=Words(f"{'; '.join(differences[:_MAX_DIFFERENCES])}{ending}"),
            hint="Take it from layer.theta, or map layer.vars to it.",
        )


def _shape_text(x: Any) -> str:
    return f"has {tuple(x.shape)}" if hasattr(x, "shape") else f"is {x!r}"
