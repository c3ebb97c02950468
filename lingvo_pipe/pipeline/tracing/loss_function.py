"""The loss as a function that the last stage calls, and the rules that it must keep."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.forward_context import row_dim
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.optional_nest import map_present, present
from lingvo_pipe.pipeline.tracing.layer_function import LayerFunctions, root
from lingvo_pipe.pipeline.tracing.named_errors import named_errors, specs_text
from lingvo_pipe.pipeline.tracing.purity import OF_LOSSES, check_pure
from lingvo_pipe.pipeline.tracing.trace import Result, Surroundings, Trace

LossFunction = Callable[[Any, Any], NestedMap]


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
    if surroundings.num_examples is not None:
        _check_rows(args, functions)
    with context:
        metrics = loss_fn(*map_present(context.example_rows, args))
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
    if not isinstance(metrics, Mapping) or "loss" not in metrics:
        found = sorted(metrics) if isinstance(metrics, Mapping) else metrics
        raise ValueError(
            "The metrics of a model must be a map name -> (mean, weight) with one "
            f"called 'loss'; ComputeLoss returned {found}."
        )
    sums = NestedMap({k: _summed(k, metric) for k, metric in metrics.items()})
    return Result(None, NestedMap(metrics=sums), [sums.loss[0]])


def _check_rows(args: Any, functions: LayerFunctions) -> None:
    """Raises ValueError unless examples can be told from rows that are none."""
    found, batch_dim = present(args), functions.batch_dim
    if any(
        not x.shape.rank
        or x.shape[row_dim(x.shape.rank, batch_dim)] != functions.num_rows
        for x in found
    ):
        raise ValueError(
            "Where M does not divide the mini-batch, all outputs and targets must have "
            f"a row for each example in dimension {batch_dim}; those that come to the "
            f"loss for {functions.num_rows} rows are {specs_text(found)}. Choose a "
            "mini-batch that is a multiple of num_micro_batches."
        )


def _summed(name: str, metric: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """(mean, weight) -> (mean · weight, weight); no gradient goes by the weight."""
    is_pair = isinstance(metric, (tuple, list)) and len(metric) == 2
    pair = [tf.convert_to_tensor(x) for x in metric] if is_pair else []
    if not is_pair or any(x.shape.rank != 0 for x in pair):
        raise ValueError(
            f"A metric must be a pair (mean, weight) of scalars; {name!r} is {metric}. "
            "Reduce it over the examples, and give their number or total weight."
        )
    dtype = tf.float64 if tf.float64 in [x.dtype for x in pair] else tf.float32
    mean, weight = (tf.cast(x, dtype) for x in pair)
    weight = tf.stop_gradient(weight)
    return mean * weight, weight
