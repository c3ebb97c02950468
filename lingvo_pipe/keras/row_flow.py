"""The flow of examples through a layer's graph, and whether they meet there.

The graph is traced for an unknown number of examples. Each tensor is one of

    FREE    of no example, such as weights and constants
    COUNT   of the number of examples alone
    ROWS    of examples, with their dimension
    JOINT   of examples, without it: a sum, a mean, a maximum, one example
    MIXED   of a joint tensor, by what is not linear, or for each example again

Sums and means of micro-batches can be put together, so joint tensors may become losses
and states of a layer. Nothing that is mixed may.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any

import tensorflow as tf


class Flow(IntEnum):
    """The make-up of a tensor, from the harmless to the mixed."""

    FREE = 0
    COUNT = 1
    ROWS = 2
    JOINT = 3
    MIXED = 4


_SHAPES = ("Shape", "ShapeN", "Size", "Rank")
# The inputs of operations that are shapes, which may depend on the number of examples.
_SHAPE_INPUTS: Mapping[str, Sequence[int]] = {
    **dict.fromkeys(
        ("Reshape", "BroadcastTo", "Tile", "Pad", "PadV2", "MirrorPad"), [1]
    ),
    **dict.fromkeys(("Fill", "RandomUniform", "RandomStandardNormal"), [0]),
    **dict.fromkeys(("TruncatedNormal", "RandomUniformInt"), [0]),
    "Slice": [1, 2],
    "StridedSlice": [1, 2, 3],
    "TensorListReserve": [0, 1],
}
# Linear in all inputs together, and linear in one that others scale.
_LINEAR = {
    *("Identity", "Cast", "Reshape", "Squeeze", "ExpandDims", "Sum", "Mean", "Neg"),
    *("Add", "AddV2", "AddN", "Sub", "Pack", "ConcatV2", "StridedSlice", "Transpose"),
    *("StopGradient", "PreventGradient", "BiasAdd", "ReadVariableOp", "Unpack"),
}
_SCALED = {"Mul", "MatMul", "BatchMatMulV2", "RealDiv", "DivNoNan"}
_QUOTIENTS = {"RealDiv", "DivNoNan"}


def flows(graph: tf.Graph, inputs: Iterable[tf.Tensor]) -> dict[Any, Flow]:
    """Returns the flow of each tensor of a graph by its reference.

    `inputs` are the tensors with a dimension of examples, which is of unknown size.
    """
    by_tensor: dict[Any, Flow] = {x.ref(): Flow.ROWS for x in inputs}
    for op in graph.get_operations():
        taken = [by_tensor.get(x.ref(), Flow.FREE) for x in op.inputs]
        for x in op.outputs:
            by_tensor.setdefault(x.ref(), _flow(op, taken, x))
    return by_tensor


def has_custom_gradient(graph: tf.Graph) -> bool:
    """Returns whether a function of `tf.custom_gradient` is in a graph."""
    return any(
        op.type == "IdentityN" and "_gradient_op_type" in op.node_def.attr
        for op in graph.get_operations()
    )


def _flow(op: tf.Operation, taken: Sequence[Flow], output: tf.Tensor) -> Flow:
    if op.type in _SHAPES:
        return Flow.COUNT if any(taken) and not _is_known(op) else Flow.FREE
    if op.type == "StridedSlice" and op.inputs[0].op.type == "Shape" and _is_known(op):
        return Flow.FREE
    shapes = _SHAPE_INPUTS.get(op.type, ())
    values = [flow for i, flow in enumerate(taken) if i not in shapes]
    flow = max(values, default=Flow.FREE)
    if flow == Flow.COUNT:
        return Flow.MIXED if output.dtype == tf.bool else flow
    if flow == Flow.ROWS and not _has_rows(output):
        is_choice = output.dtype == tf.bool or op.type in ("ArgMax", "ArgMin")
        return Flow.MIXED if is_choice else Flow.JOINT
    if flow == Flow.JOINT and (_has_rows(output) or not _is_linear(op, taken)):
        return Flow.MIXED
    return flow


def _is_linear(op: tf.Operation, taken: Sequence[Flow]) -> bool:
    if op.type in _QUOTIENTS and taken[1] > Flow.COUNT:
        return False
    is_scaled = op.type in _SCALED and sum(x > Flow.COUNT for x in taken) == 1
    return is_scaled or op.type in _LINEAR


def _has_rows(x: tf.Tensor) -> bool:
    """Returns whether a tensor may have a dimension of examples."""
    if x.dtype in (tf.variant, tf.resource) or x.shape.rank is None:
        return True
    return None in x.shape.as_list()


def _is_known(op: tf.Operation) -> bool:
    """Returns whether an operation returns known sizes, of a shape or a part of it."""
    if op.type != "StridedSlice":
        return all(x.shape.is_fully_defined() for x in op.inputs)
    begin, end = (tf.get_static_value(x) for x in op.inputs[1:3])
    shape = op.inputs[0].op.inputs[0].shape
    if begin is None or end is None or shape.rank is None or len(begin) != 1:
        return False
    sizes, first, last = shape.as_list(), int(begin[0]), int(end[0])
    if op.get_attr("shrink_axis_mask"):
        return sizes[first] is not None
    start = None if op.get_attr("begin_mask") else first
    stop = None if op.get_attr("end_mask") else last
    return None not in sizes[start:stop]
