"""Checks the user's loss function, and turns its means into sums that add up."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.core.graph_gradient import Gradient, custom_gradient
from lingvo_pipe.core.nests import is_differentiable, map_present, present
from lingvo_pipe.layers.core.forward_context import ForwardContext, row_dim
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.tracing.named_errors import specs_text
from lingvo_pipe.pipeline.tracing.trace import CallContext, differentiable

LossFunction = Callable[[Any, Any], NestedMap]


class Total(NamedTuple):
    """A metric of any shape that is summed over micro-batches, not averaged."""

    value: tf.Tensor


def check_loss_function(loss_fn: Any, path: str) -> None:
    """Raises ValueError unless the user's function can be called and hashed."""
    if not callable(loss_fn):
        raise UserValueError(
            path=f"{path}.loss_fn",
            expected="a function (outputs, targets) -> NestedMap(name=(mean, weight))",
            got=loss_fn,
            hint="For the outputs without a loss call FProp.",
        )
    try:
        hash(loss_fn)
    except TypeError as error:
        raise UserValueError(
            path=f"{path}.loss_fn",
            expected="a hashable function, since the pipeline caches a graph for each",
            got=loss_fn,
            hint="Pass a function or a method.",
        ) from error


def loss_sums(
    loss_fn: LossFunction, context: ForwardContext, args: Any, trains: bool
) -> NestedMap:
    """Returns the metrics of a micro-batch's examples as NestedMap(name=(sum, weight)).

    Sums and weights are float64 if the mean or the weight is, otherwise float32. A
    `Total` keeps its dtype. `args` are outputs and targets, which may have padding
    rows. `trains` says whether the loss is differentiated.

    A metric of weight 0 has the sum 0, and a loss of weight 0 the gradient 0, even if
    the mean is 0 / 0.

    Raises:
        ValueError: if the number of rows, or the result of `loss_fn`, is wrong.
    """
    if context.may_have_padding_rows:
        _check_rows(args, context)
    weights: list[tf.Tensor] = []  # The loss's weight, once it is known.
    if trains:
        outputs, targets = args
        args = map_present(lambda x: _counted(x, weights), outputs), targets
    metrics = loss_fn(*map_present(context.example_rows, args))
    if not isinstance(metrics, Mapping) or "loss" not in metrics:
        raise UserValueError(
            path="ComputeLoss",
            expected="metrics as a map name -> (mean, weight) with a name 'loss'",
            got=sorted(metrics) if isinstance(metrics, Mapping) else metrics,
            hint="Return NestedMap(loss=(mean, weight)).",
        )
    sums = NestedMap({k: _summed(k, metric) for k, metric in metrics.items()})
    weights.append(sums.loss[1])
    return sums


def weight_has_gradient(
    loss_fn: LossFunction,
    make_context: Callable[[CallContext], ForwardContext],
    call_context: CallContext,
    args: Any,
) -> bool:
    """Returns whether the weight of the loss has a gradient for the outputs.

    `call_context` and `args`, which are outputs and targets, are specs.
    """
    gradients: list[tf.Tensor] = []

    def record(call_context: CallContext, args: Any) -> None:
        sources = differentiable(args[0])
        with make_context(call_context) as context, tf.GradientTape() as tape:
            tape.watch(sources)
            _, weight = loss_fn(*map_present(context.example_rows, args))["loss"]
            weight = tf.convert_to_tensor(weight)
        if is_differentiable(weight):
            gradients.extend(present(tape.gradient(weight, sources)))

    tf.function(record, autograph=False).get_concrete_function(call_context, args)
    return bool(gradients)


def _counted(x: tf.Tensor, weights: list[tf.Tensor]) -> tf.Tensor:
    """Returns `x`, whose gradient is 0 if the loss's weight is 0.

    `weights` gets the weight before the gradient is computed.
    """
    if not is_differentiable(x):
        return x

    @custom_gradient
    def pass_on(x: tf.Tensor) -> tuple[list[tf.Tensor], Gradient]:
        def gradient(output_gradient: tf.Tensor) -> list[tf.Tensor]:
            if tf.get_static_value(weights[0]) not in (None, 0):
                return [output_gradient]
            is_counted, zero = weights[0] != 0, tf.zeros([], output_gradient.dtype)
            if zero.dtype == tf.bfloat16:  # GPUs have no multiply_no_nan for it.
                return [tf.where(is_counted, output_gradient, zero)]
            # Needs no other buffer, unlike `tf.where`.
            factor = tf.cast(is_counted, zero.dtype)
            return [tf.math.multiply_no_nan(output_gradient, factor)]

        return [x], gradient

    (result,) = pass_on(x)
    return result


def _check_rows(args: Any, context: ForwardContext) -> None:
    tensors, batch_dim = present(args), context.batch_dim
    if any(
        not x.shape.rank
        or x.shape[row_dim(x.shape.rank, batch_dim)] != context.num_rows
        for x in tensors
    ):
        raise UserValueError(
            path="ComputeLoss",
            expected=f"outputs and targets of {context.num_rows} rows in dimension "
            f"{batch_dim}, because M does not divide the mini-batch",
            got=Words(specs_text(tensors)),
            hint="Choose a mini-batch that is a multiple of num_micro_batches.",
        )


def _summed(name: str, metric: Any) -> tuple[tf.Tensor, tf.Tensor] | Total:
    """Returns (mean · weight, weight) for a pair (mean, weight), or a Total.

    Weights and Totals get no gradient.
    """
    if isinstance(metric, Total):
        return Total(tf.stop_gradient(tf.convert_to_tensor(metric.value)))
    is_pair = isinstance(metric, (tuple, list)) and len(metric) == 2
    pair = [tf.convert_to_tensor(x) for x in metric] if is_pair else []
    if not is_pair or any(x.shape.rank != 0 for x in pair):
        raise UserValueError(
            path=f"ComputeLoss.{name}",
            expected="a pair (mean, weight) of scalars",
            got=metric,
            hint="Reduce it over the examples, and give their number or total weight.",
        )
    dtype = tf.float64 if tf.float64 in [x.dtype for x in pair] else tf.float32
    mean, weight = (tf.cast(x, dtype) for x in pair)
    weight = tf.stop_gradient(weight)
    return tf.math.multiply_no_nan(mean, weight), weight
