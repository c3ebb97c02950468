"""The loss as a function that the last stage calls, and the rules that it must keep."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.optional_nest import present
from lingvo_pipe.pipeline.tracing.layer_function import LayerFunctions, root
from lingvo_pipe.pipeline.tracing.loss_sums import LossFunction, loss_sums
from lingvo_pipe.pipeline.tracing.named_errors import named_errors
from lingvo_pipe.pipeline.tracing.purity import OF_LOSSES, check_pure
from lingvo_pipe.pipeline.tracing.trace import Result, Surroundings, Trace


def check_loss_function(loss_fn: Any, where: str) -> None:
    """Raises ValueError unless a pipeline can be built with it.

    Args:
        loss_fn: what the user gave.
        where: the pipeline's path, for errors.
    """
    if not callable(loss_fn):
        raise ValueError(
            "loss_fn must be a function (outputs, targets) -> "
            f"NestedMap(name=(mean, weight)); {where} was given {loss_fn!r}. For the "
            "outputs without a loss call FProp."
        )
    try:
        hash(loss_fn)
    except TypeError as error:
        raise ValueError(
            "loss_fn must be hashable, for a pipeline is built once for each; "
            f"{where} was given a {type(loss_fn).__name__}: {error}. Pass a function "
            "or a method."
        ) from error


def trace_loss(
    loss_fn: LossFunction,
    last_layer: BaseLayer,
    functions: LayerFunctions,
    surroundings: Surroundings,
    outputs: Any,
    targets: Any,
) -> Trace:
    """Traces the loss as what adds up over micro-batches.

    Args:
        loss_fn: `(outputs, targets) -> NestedMap(name=(mean, weight))`.
        last_layer: whose outputs it is given.
        functions: whether it runs in evaluation, and is differentiated.
        surroundings: specs.
        outputs: specs of the last layer's outputs for a micro-batch.
        targets: specs of a micro-batch's targets.

    Returns:
        The trace. Its sums are NestedMap(metrics=NestedMap(name=(sum, weight))), in
        float32 or wider, whatever the metrics' dtypes.

    Raises:
        ValueError: if the loss breaks a rule, or does not depend on the outputs.
    """
    where = functions.place_of_loss(last_layer)
    body = functools.partial(_sums, loss_fn, last_layer, functions)
    args = outputs, targets
    with named_errors(where, args, functions.row_change):
        trace = Trace(body, [], [], surroundings, args, functions.trains)
    num_outputs = len(present(outputs))
    if functions.trains and not any(
        gradient is not None for gradient in trace.input_gradients[:num_outputs]
    ):
        raise ValueError(
            "The loss must depend on the last layer's outputs; that of "
            f"{last_layer.path} does not, as gradients go. Look for a "
            "tf.stop_gradient, a comparison or an integer cast in ComputeLoss."
        )
    return trace


def _sums(
    loss_fn: LossFunction,
    last_layer: BaseLayer,
    functions: LayerFunctions,
    theta: Any,
    surroundings: Surroundings,
    args: Any,
) -> Result:
    context = functions.context(surroundings)
    with context:
        sums = loss_sums(loss_fn, context, args)
    handed_over = {**context.accumulated, **context.losses, **context.metric_pairs}
    if handed_over:
        raise ValueError(
            "Only layers can accumulate or add losses and metrics; the loss handed "
            f"over {sorted(handed_over)}. Return them as metrics."
        )
    check_pure(
        tf.compat.v1.get_default_graph(),
        functions.place_of_loss(last_layer),
        root(last_layer).VariablePaths(),
        OF_LOSSES,
    )
    return Result(None, NestedMap(metrics=sums), [sums.loss[0]])
