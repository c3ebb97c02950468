r"""Rejects sums and metrics that padding rows may affect.

Where M does not divide the mini-batch, micro-batches are padded to b rows. The sums and
metrics of a layer must leave the padding rows out. The graph shows whether they do:

    inputs --> [ x · w ] --> sum           every path from the rows passes a mask
    inputs --> x - mean --> mean of it     one path does not: rejected
                    ^---- sum of x · w     although padding does not affect `mean`

A mask is a tensor with rows that depends only on the number of examples. A tensor that
is 0 for padding rows already, such as x · w, masks too. A sum or metric must also
depend on the number of examples: the constant b would be a wrong weight. Functions
within the layer that take the number of examples are not inspected.
"""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.core.nests import present
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.pipeline.tracing.cut import dependents
from lingvo_pipe.pipeline.tracing.trace import CallContext

# Operations whose results do not depend on rows where another input is 0, or on rows
# that no index names.
_MASKING = {
    *("BatchMatMulV2", "DivNoNan", "Einsum", "GatherNd", "GatherV2", "LogicalAnd"),
    *("MatMul", "Mul", "MulNoNan", "Select", "SelectV2", "SparseSegmentSum"),
    "UnsortedSegmentSum",
}
# Operations that may take the number of examples itself.
_TAKING_NUMBER = {
    *("Case", "If", "PartitionedCall", "Slice", "StatefulPartitionedCall"),
    *("StatelessCase", "StatelessIf", "StatelessWhile", "StridedSlice", "While"),
}
# Operations that preserve masks and masked tensors.
_PRESERVING = {
    *("AddV2", "BroadcastTo", "Cast", "Equal", "ExpandDims", "Greater"),
    *("GreaterEqual", "Identity", "Less", "LessEqual", "LogicalAnd", "LogicalNot"),
    *("LogicalOr", "Mul", "MulNoNan", "Neg", "NotEqual", "Reshape", "Select"),
    *("SelectV2", "Squeeze", "StopGradient", "Sub", "Tile", "Transpose"),
}


def check_padding_rows_left_out(
    context: ForwardContext, call_context: CallContext, args: Any, location: str
) -> None:
    """Checks that a forward pass's accumulators and metrics leave out padding rows.

    Both the mean and the weight of a metric must leave padding rows out, unless they
    depend only on weights and constants. Losses need no check: they are per row, and
    the context masks them. `call_context` and `args` are the placeholders of the
    forward pass.

    Raises:
        ValueError: if an accumulator or a metric may depend on padding rows.
    """
    if call_context.num_examples is None:
        return
    graph = tf.compat.v1.get_default_graph()
    rows = {x.op for x in present([call_context.first_example, args])}
    by_number = dependents(graph, {call_context.num_examples.op})
    by_rows = dependents(graph, rows)
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
        raise UserValueError(
            path=location,
            expected="accumulators and metrics that leave out padding rows",
            got=Words(f"{' and '.join(wrong)} over all rows"),
            hint="Multiply by ForwardContext.row_weights (a metric's weight is their "
            "sum), or choose a mini-batch that is a multiple of num_micro_batches.",
        )


def _unmasked(
    graph: Any,
    rows: Iterable[tf.Operation],
    by_number_alone: set[tf.Operation],
    num_rows: int | None,
) -> set[tf.Operation]:
    """Returns the operations that depend on `rows` by a path without a mask.

    `rows` are the operations at which the paths begin. They are part of the result.
    The operations `by_number_alone` depend on the number of examples, but not on
    `rows`. Those that may have `num_rows` rows or an unknown number are masks.
    """
    masks = {
        op
        for op in by_number_alone
        if any(
            x.shape.rank is None or {None, num_rows} & set(x.shape.as_list())
            for x in op.outputs
        )
    }
    unmasked = set(rows)
    for op in graph.get_operations():
        sources = {x.op for x in op.inputs}
        is_masked = (op.type in _MASKING and sources & masks) or (
            op.type in _TAKING_NUMBER and sources & (masks | by_number_alone)
        )
        if sources & unmasked and not is_masked:
            unmasked.add(op)
        elif sources & masks and op.type in _PRESERVING:
            masks.add(op)
    return unmasked
