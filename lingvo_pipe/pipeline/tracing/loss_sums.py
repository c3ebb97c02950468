"""What a loss adds up over micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from lingvo_pipe.layers.forward_context import ForwardContext, row_dim
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.optional_nest import map_present, present
from lingvo_pipe.pipeline.tracing.named_errors import specs_text

LossFunction = Callable[[Any, Any], NestedMap]


def loss_sums(loss_fn: LossFunction, context: ForwardContext, args: Any) -> NestedMap:
    """The metrics of a micro-batch's examples as NestedMap(name=(sum, weight)).

    They are in float32 or wider, whatever the metrics' dtypes.

    Args:
        loss_fn: `(outputs, targets) -> NestedMap(name=(mean, weight))`.
        context: of the forward pass.
        args: outputs and targets, with rows that may be no examples.

    Raises:
        ValueError: if examples can't be told from other rows, or what `loss_fn` returns
            is something else.
    """
    if context.may_have_fillers:
        _check_rows(args, context)
    metrics = loss_fn(*map_present(context.example_rows, args))
    if not isinstance(metrics, Mapping) or "loss" not in metrics:
        found = sorted(metrics) if isinstance(metrics, Mapping) else metrics
        raise ValueError(
            "The metrics of a model must be a map name -> (mean, weight) with one "
            f"called 'loss'; ComputeLoss returned {found}."
        )
    return NestedMap({k: _summed(k, metric) for k, metric in metrics.items()})


def _check_rows(args: Any, context: ForwardContext) -> None:
    """Raises ValueError unless examples can be told from rows that are none."""
    found, batch_dim = present(args), context.batch_dim
    if any(
        not x.shape.rank
        or x.shape[row_dim(x.shape.rank, batch_dim)] != context.num_rows
        for x in found
    ):
        raise ValueError(
            "Where M does not divide the mini-batch, all outputs and targets must have "
            f"a row for each example in dimension {batch_dim}; those that come to the "
            f"loss for {context.num_rows} rows are {specs_text(found)}. Choose a "
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
