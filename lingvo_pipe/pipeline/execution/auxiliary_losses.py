"""Scale of auxiliary losses relative to the main loss.

The gradients of a step are sums, which are finally divided by the main loss's total
weight W. An auxiliary loss counts by its mean over the B examples, so its sum is
multiplied by W / B beforehand. W must therefore be known before the step starts: the
part of the loss that computes its weight is extracted, and run on the targets of all
micro-batches. Where W is 0, the sums are divided by B instead, and auxiliary losses are
not scaled.
"""

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.core.nests import present
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.loops.run_data import RunArguments
from lingvo_pipe.pipeline.tracing.cut import CutGraph
from lingvo_pipe.pipeline.tracing.trace import CallContext, Trace


def has_auxiliary_losses(traces: list[Trace]) -> bool:
    """Returns whether some layer adds an auxiliary loss."""
    return any(trace.result.sums.get("losses") for trace in traces)


def loss_weights(loss: Trace, num_targets: int, arguments: RunArguments) -> tf.Tensor:
    """Returns the main loss's weight for each micro-batch, `[M]`. The sum is W.

    The loss's last `num_targets` inputs are the targets.

    Raises:
        ValueError: if the loss's weight depends on the predictions.
    """
    cut, weight, targets = weight_graph(loss, num_targets)
    function = cut.function(0, [*loss.call_context, *targets], [weight])
    num = arguments.num_examples

    def weight_of(micro_batch: NestedMap) -> tf.Tensor:
        context = CallContext(
            step=micro_batch.step[0] if micro_batch.step else arguments.step,
            first_example=micro_batch.first,
            num_examples=micro_batch.num[0] if micro_batch.num else None,
        )
        return function(*present(context), *micro_batch.targets)[0]

    by_micro_batch = NestedMap(
        first=arguments.first_examples,
        step=[x for x in [arguments.step] if x is not None and x.shape.rank],
        num=[] if num is None else [num],
        targets=present(arguments.targets),
    )
    return tf.map_fn(weight_of, by_micro_batch, fn_output_signature=weight.dtype)


def loss_scale(weights: tf.Tensor, batch_size: tf.Tensor) -> tf.Tensor:
    """Returns W / B, the factor for sums of auxiliary losses, or 1 if W is 0.

    `weights` is `[M]`, and `batch_size`, `[]`, is B. The result is `[]` float64.
    """
    scale = tf.reduce_sum(weights) / tf.cast(batch_size, weights.dtype)
    scale = tf.cast(scale, tf.float64)
    return tf.where(tf.equal(scale, 0.0), tf.ones_like(scale), scale)


def loss_divisor(
    traces: list[Trace], weight: tf.Tensor, batch_size: tf.Tensor
) -> tf.Tensor:
    """Returns the divisor of summed gradients, `[]` float64.

    This is `weight`, the main loss's total weight W. If W is 0 and there are auxiliary
    losses, it is the batch size.
    """
    if has_auxiliary_losses(traces):
        number = tf.cast(batch_size, weight.dtype)
        weight = tf.where(tf.equal(weight, 0.0), number, weight)
    return tf.cast(weight, tf.float64)


def weight_graph(
    loss: Trace, num_targets: int
) -> tuple[CutGraph, tf.Tensor, list[tf.Tensor]]:
    """Cuts out the part of the loss's graph that computes the loss's weight.

    Raises:
        ValueError: if the weight does not follow from the targets.
    """
    weight = loss.result.sums.metrics["loss"][1]
    targets = loss.args[len(loss.args) - num_targets :]
    cut = CutGraph(loss.graph, loss.call_context, [], [[weight]])
    if {x.ref() for x in cut.needed(0)} - {x.ref() for x in targets}:
        raise UserValueError(
            path="ComputeLoss.loss",
            expected="a weight that depends only on the targets, because layers add "
            "losses, blocks have their own, or several steps run in one call",
            got=Words("one that depends on the predictions"),
        )
    return cut, weight, targets
