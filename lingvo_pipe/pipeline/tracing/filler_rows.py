r"""Refuses sums and metrics in which rows that are no examples may have a share.

Where M does not divide the mini-batch, micro-batches are filled up to b rows. What a
layer hands over must leave the fillers out. That is seen in the graph:

    inputs --> [ x · w ] --> sum           every way from the rows goes by a mask
    inputs --> x - mean --> mean of it     this one does not: refused
                    ^---- sum of x · w     although the fillers have no share in `mean`

A mask is what follows from the number of examples alone and has rows; or what is 0 for
fillers already, such as x · w. It must also depend on that number at all: a constant b
is no weight.

What a function within the layer does with the number of examples is not looked into.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from lingvo_pipe.layers.forward_context import ForwardContext
from lingvo_pipe.optional_nest import present
from lingvo_pipe.pipeline.tracing.trace import Surroundings

# Rows for which one of their inputs is 0, or which it does not name, have no share in
# what these yield.
_MASKING = {
    "BatchMatMulV2",
    "DivNoNan",
    "Einsum",
    "GatherNd",
    "GatherV2",
    "LogicalAnd",
    "MatMul",
    "Mul",
    "MulNoNan",
    "Select",
    "SelectV2",
    "SparseSegmentSum",
    "UnsortedSegmentSum",
}
# These are told the number of examples itself.
_TOLD = {
    "Case",
    "If",
    "PartitionedCall",
    "Slice",
    "StatefulPartitionedCall",
    "StatelessCase",
    "StatelessIf",
    "StatelessWhile",
    "StridedSlice",
    "While",
}
# A mask, or what has been masked, stays one.
_KEEPING = {
    "AddV2",
    "BroadcastTo",
    "Cast",
    "Equal",
    "ExpandDims",
    "Greater",
    "GreaterEqual",
    "Identity",
    "Less",
    "LessEqual",
    "LogicalAnd",
    "LogicalNot",
    "LogicalOr",
    "Mul",
    "MulNoNan",
    "Neg",
    "NotEqual",
    "Reshape",
    "Select",
    "SelectV2",
    "Squeeze",
    "StopGradient",
    "Sub",
    "Tile",
    "Transpose",
}


def check_fillers_left_out(
    context: ForwardContext, told: Surroundings, args: Any, where: str
) -> None:
    """Checks what a forward pass has just handed over.

    An accumulator's share, and both the mean and the weight of a metric, must leave out
    rows that are no examples; but for metrics of weights and constants alone. Losses
    are of rows, and masked by the context.

    Args:
        context: the context it ran in.
        told: the placeholders it was given.
        args: likewise.
        where: what ran, as in "FProp of the FCLayer at model/dense (stage 0)".

    Raises:
        ValueError: if something may not.
    """
    if told.num_examples is None:
        return
    graph = tf.compat.v1.get_default_graph()
    rows = {x.op for x in present([told.first_example, args])}
    by_number = _dependents(graph, {told.num_examples.op})
    by_rows = _dependents(graph, rows)
    good = by_number - _unmasked(graph, rows, by_number - by_rows, context.num_rows)
    wrong = [
        f"accumulator {name!r}"
        for name, share in context.accumulated.items()
        if share.op not in good
    ]
    for name, pairs in context.metric_pairs.items():
        changing = [
            pair for pair in pairs if any(x.op in by_rows | by_number for x in pair)
        ]
        if any(x.op not in good for pair in changing for x in pair):
            wrong.append(f"metric {name!r}")
    if wrong:
        raise ValueError(
            "Where M does not divide the mini-batch, micro-batches have rows that are "
            "no examples, and accumulators and metrics must leave them out; in "
            f"{where} {' and '.join(wrong)} did not regard which they are. Multiply by "
            "ForwardContext.row_weights (a metric's weight is their sum), or choose a "
            "mini-batch that is a multiple of num_micro_batches."
        )


def _dependents(graph: Any, sources: Iterable[tf.Operation]) -> set[tf.Operation]:
    """The operations that depend on one of these, and these."""
    found = set(sources)
    for op in graph.get_operations():
        if any(x.op in found for x in op.inputs):
            found.add(op)
    return found


def _unmasked(
    graph: Any,
    rows: Iterable[tf.Operation],
    by_number_alone: set[tf.Operation],
    num_rows: int | None,
) -> set[tf.Operation]:
    """The operations to which a way leads from the rows without a mask.

    Args:
        graph: the graph.
        rows: what stands for the micro-batch's rows.
        by_number_alone: what depends on the number of examples and on no row.
        num_rows: b.
    """
    masks = {
        op
        for op in by_number_alone
        if any(_may_have_rows(x.shape, num_rows) for x in op.outputs)
    }
    unmasked = set(rows)
    for op in graph.get_operations():
        sources = {x.op for x in op.inputs}
        is_masked = (op.type in _MASKING and sources & masks) or (
            op.type in _TOLD and sources & (masks | by_number_alone)
        )
        if sources & unmasked and not is_masked:
            unmasked.add(op)
        elif sources & masks and op.type in _KEEPING:
            masks.add(op)
    return unmasked


def _may_have_rows(shape: tf.TensorShape, num_rows: int | None) -> bool:
    return shape.rank is None or bool({None, num_rows} & set(shape.as_list()))
