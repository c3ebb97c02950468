"""Refuses sums and metrics in which rows that are no examples may have a share.

Where M does not divide the mini-batch, micro-batches are filled up to b rows. What a
layer hands over can leave the fillers out only if it depends on how many rows are
examples. The number b itself is a constant here. That it depends on it is no proof:
it may do so by what a layer before it in the same cell computed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from lingvo_pipe.layers.forward_context import ForwardContext
from lingvo_pipe.optional_nest import present
from lingvo_pipe.pipeline.tracing.trace import Surroundings


def check_fillers_left_out(
    context: ForwardContext, told: Surroundings, args: Any, where: str
) -> None:
    """Checks what a forward pass has just handed over.

    An accumulator's share, and both the mean and the weight of a metric, must depend on
    the number of examples; but for metrics of weights and constants alone. Losses are
    of rows, and masked by the context.

    Args:
        context: the context it ran in.
        told: the placeholders it was given.
        args: likewise.
        where: what ran, as in "FProp of the FCLayer at model/dense (stage 0)".

    Raises:
        ValueError: if something does not depend on it.
    """
    if told.num_examples is None:
        return
    graph = tf.compat.v1.get_default_graph()
    masked = _dependents(graph, [told.num_examples])
    by_micro_batch = masked | _dependents(graph, present([told.first_example, args]))
    wrong = [
        f"accumulator {name!r}"
        for name, share in context.accumulated.items()
        if share.op not in masked
    ]
    for name, pairs in context.metric_pairs.items():
        changing = [
            pair for pair in pairs if by_micro_batch.intersection(x.op for x in pair)
        ]
        if any(x.op not in masked for pair in changing for x in pair):
            wrong.append(f"metric {name!r}")
    if wrong:
        raise ValueError(
            "Where M does not divide the mini-batch, micro-batches have rows that are "
            "no examples, and accumulators and metrics must leave them out; in "
            f"{where} {' and '.join(wrong)} did not regard which they are. Multiply by "
            "ForwardContext.row_weights (a metric's weight is their sum), or choose a "
            "mini-batch that is a multiple of num_micro_batches."
        )


def _dependents(graph: Any, tensors: Iterable[tf.Tensor]) -> set[tf.Operation]:
    """The operations that depend on a tensor."""
    found = {x.op for x in tensors}
    for op in graph.get_operations():
        if any(x.op in found for x in op.inputs):
            found.add(op)
    return found
