"""The loss as a function that the last stage calls, and the rules that it must keep."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.forward_context import ForwardContext
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.layer_function import OUT_OF_LINE, root
from lingvo_pipe.pipeline.purity import check_pure

LossFunction = Callable[[Any, Any], NestedMap]


def make_loss_function(
    loss_fn: LossFunction, last_layer: BaseLayer, do_eval: bool
) -> Callable:
    """Makes an out-of-line function that sums a micro-batch's metrics.

    Args:
        loss_fn: `(outputs, targets) -> NestedMap(name=(mean, weight))`.
        last_layer: whose outputs it is given.
        do_eval: whether it runs in evaluation.

    Returns:
        `(step, first_example, outputs, targets) -> NestedMap(name=(sum, weight))`, in
        float32 or wider, whatever the metrics' dtypes.
    """
    variables = root(last_layer).VariablePaths()

    def sums(step: Any, first_example: Any, outputs: Any, targets: Any) -> NestedMap:
        context = ForwardContext(
            do_eval=do_eval, step=step, first_example=first_example
        )
        with context:
            metrics = loss_fn(outputs, targets)
        if context.accumulated:
            raise ValueError(
                "Only layers can accumulate; the loss handed over "
                f"{sorted(context.accumulated)}. Return sums as metrics."
            )
        check_pure(tf.compat.v1.get_default_graph(), "the loss", variables)
        if not isinstance(metrics, Mapping) or "loss" not in metrics:
            found = sorted(metrics) if isinstance(metrics, Mapping) else metrics
            raise ValueError(
                "The metrics of a model must be a map name -> (mean, weight) with one "
                f"called 'loss'; ComputeLoss returned {found}."
            )
        return NestedMap({k: _summed(k, metric) for k, metric in metrics.items()})

    return tf.function(sums, **OUT_OF_LINE)


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
