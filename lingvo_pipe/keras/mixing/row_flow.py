"""The flow of examples through a layer's graph, and whether they meet there.

The graph is traced for an unknown number of examples. Each tensor is one of

    FREE    not computed from examples, such as weights and constants
    COUNT   computed from the number of examples alone
    ROWS    a value for each example, with the dimension of examples
    JOINT   a sum or a mean over examples, or linear in such sums
    MIXED   computed from several examples in any other way

Sums and means of micro-batches can be put together, so joint tensors may become losses
and states of a layer. Nothing that is mixed may.

Functions of conditions and loops are read as well, unless a loop takes the examples one
by one.
"""

from collections.abc import Container, Mapping, Sequence
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
    "Fill": [0],
    "Slice": [1, 2],
    "StridedSlice": [1, 2, 3],
    "TensorListReserve": [0, 1],
}
_PARTS_OF_SHAPES = {"StridedSlice", "Unpack", "GatherV2"}
_SUMS = {"Sum", "Mean", "MatMul", "BatchMatMulV2", "Einsum"}
_COMPARISONS = {"Greater", "GreaterEqual", "Less", "LessEqual", "Equal", "NotEqual"}
# Linear in all inputs together.
_LINEAR = {
    *("Identity", "IdentityN", "Cast", "Reshape", "Squeeze", "ExpandDims", "Sum"),
    *("Mean", "Neg", "Add", "AddV2", "AddN", "Sub", "BiasAdd", "Pack", "Unpack"),
    *("ConcatV2", "StridedSlice", "Slice", "Split", "SplitV", "GatherV2", "Tile"),
    *("BroadcastTo", "Transpose", "StopGradient", "PreventGradient", "EnsureShape"),
    *("CheckNumerics", "CheckNumericsV2"),
}
# Linear in one input, which the others scale.
_SCALED = {"Mul", "MatMul", "BatchMatMulV2", "Einsum", "RealDiv", "DivNoNan"}
_QUOTIENTS = {"RealDiv", "DivNoNan"}
_ARITHMETIC = {
    *("Add", "AddV2", "Sub", "Mul", "RealDiv", "DivNoNan", "Pow", "Maximum", "Minimum")
}
# The input that names the dimension along which elements move or are added up.
_MOVES = {"ReverseV2": 1, "Roll": 2, "Cumsum": 1, "Cumprod": 1}
# Random numbers: each example has its own, or all have the same. An input counts them.
_COUNTER = 2
_DRAWS = {
    *("StatelessRandomUniformV2", "StatelessRandomUniformIntV2"),
    *("StatelessRandomNormalV2", "StatelessTruncatedNormalV2"),
}
_CHOICES = {"If", "StatelessIf", "Case", "StatelessCase"}
_LOOPS = {"While", "StatelessWhile"}
_CALLS = {"PartitionedCall", "StatefulPartitionedCall"}


def flows(
    graph: tf.Graph, inputs: Mapping[Any, Flow], constant: Container[Any] = ()
) -> dict[Any, Flow]:
    """Returns the flow of each tensor of a graph by its reference.

    Args:
        graph: the graph, in which the dimension of examples has an unknown size.
        inputs: the flows of tensors that enter the graph. All others are FREE.
        constant: references of tensors that are the same for any number of examples.
    """
    by_tensor = dict(inputs)
    for op in graph.get_operations():
        taken = [by_tensor.get(x.ref(), Flow.FREE) for x in op.inputs]
        results = _flows_of_functions(op, taken)
        for i, x in enumerate(op.outputs):
            flow = results[i] if results else _flow(op, taken, x)
            by_tensor.setdefault(x.ref(), Flow.FREE if x.ref() in constant else flow)
    return by_tensor


def sizes_in(graph: tf.Graph) -> list[tf.Tensor]:
    """Returns the tensors that hold a shape, size or rank, or elements of these."""
    shapes = [op for op in graph.get_operations() if op.type in _SHAPES]
    parts = [
        op
        for op in graph.get_operations()
        if op.type in _PARTS_OF_SHAPES and op.inputs[0].op in shapes
    ]
    return [x for op in (*shapes, *parts) for x in op.outputs]


def has_custom_gradient(graph: Any) -> bool:
    """Returns whether a function of `tf.custom_gradient` is in a graph."""
    return any(
        (op.type == "IdentityN" and "_gradient_op_type" in op.node_def.attr)
        or any(map(has_custom_gradient, _functions(op, *op.node_def.attr)))
        for op in graph.get_operations()
    )


def _flows_of_functions(op: tf.Operation, taken: Sequence[Flow]) -> list[Flow]:
    """Returns the flows of an operation's outputs, from the functions that it calls.

    Without functions, and for a loop over the examples, returns an empty list.
    """
    if op.type in _CALLS:
        (function,) = _functions(op, "f")
        return _flows_of_results(function, taken)
    if op.type in _CHOICES:
        names = ["branches"] if "Case" in op.type else ["then_branch", "else_branch"]
        of_branches = [_flows_of_results(x, taken[1:]) for x in _functions(op, *names)]
        # A choice that depends on examples is one for all of them.
        chosen = Flow.FREE if taken[0] == Flow.FREE else Flow.MIXED
        return [max(chosen, *x) for x in zip(*of_branches, strict=True)]
    if op.type not in _LOOPS:
        return []
    (condition,), (body,) = _functions(op, "cond"), _functions(op, "body")
    values, last = list(taken), None
    while values != last:
        last = values
        results = _flows_of_results(body, values)
        values = list(map(max, values, results))
    if _flows_of_results(condition, values) == [Flow.FREE]:
        return values
    without_count = [Flow.FREE if x == Flow.COUNT else x for x in values]
    ends_by_examples = _flows_of_results(condition, without_count) != [Flow.FREE]
    return [Flow.MIXED] * len(values) if ends_by_examples else []


def _functions(op: tf.Operation, *names: str) -> list[Any]:
    attributes = [op.node_def.attr[name] for name in names]
    functions = [f.name for x in attributes for f in (*x.list.func, x.func) if f.name]
    # TensorFlow has no public way from a function's name to its graph.
    return [op.graph._get_function(name).graph for name in functions]


def _flows_of_results(graph: Any, taken: Sequence[Flow]) -> list[Flow]:
    inputs = {x.ref(): flow for x, flow in zip(graph.inputs, taken, strict=True)}
    by_tensor = flows(graph, inputs)
    return [by_tensor[x.ref()] for x in graph.outputs]


def _flow(op: tf.Operation, taken: Sequence[Flow], output: tf.Tensor) -> Flow:
    if op.type in _DRAWS:
        if not _has_rows(output):
            return Flow.FREE
        # Unless the first row is added to it, all micro-batches draw the same numbers.
        of_rows = op.inputs[_COUNTER].op.type != "StatelessRandomGetKeyCounter"
        return Flow.ROWS if of_rows else Flow.MIXED
    if op.type in _SHAPES:
        return Flow.COUNT if any(taken) and not _is_known(op) else Flow.FREE
    if op.type == "StridedSlice" and op.inputs[0].op.type == "Shape" and _is_known(op):
        return Flow.FREE
    if op.type in ("OnesLike", "ZerosLike"):
        return Flow.FREE
    shapes = _SHAPE_INPUTS.get(op.type, ())
    values = [flow for i, flow in enumerate(taken) if i not in shapes]
    flow = max(values, default=Flow.FREE)
    if flow == Flow.FREE and not _has_rows(output):
        # Such as a sum of ones.
        has_rows = any(_row_axis(x) is not None for x in op.inputs)
        return Flow.COUNT if has_rows else Flow.FREE
    if flow == Flow.COUNT and output.dtype == tf.bool:
        return Flow.FREE if _compares_with_zero(op) else Flow.MIXED
    if flow == Flow.ROWS:
        return _flow_of_rows(op, taken, output)
    if flow == Flow.JOINT and (_has_rows(output) or not _is_linear(op, taken, output)):
        return Flow.MIXED
    return flow


def _flow_of_rows(op: tf.Operation, taken: Sequence[Flow], output: tf.Tensor) -> Flow:
    """Returns the output's flow, if ROWS is the highest flow of the value inputs."""
    if not _has_rows(output):
        is_sum = op.type in _SUMS and output.dtype.is_floating
        return Flow.JOINT if is_sum or op.type in _LOOPS else Flow.MIXED
    if op.type == "RandomShuffle" or _moves_examples(op):
        return Flow.MIXED
    is_scaled = op.type in _ARITHMETIC and output.dtype.is_floating
    return Flow.MIXED if is_scaled and Flow.COUNT in taken else Flow.ROWS


def _moves_examples(op: tf.Operation) -> bool:
    """Returns whether examples change their places, or only some are left."""
    if op.type in ("StridedSlice", "Slice"):
        return _leaves_out_examples(op)
    x = op.inputs[0]
    if op.type == "ConcatV2":
        axes = tf.get_static_value(op.inputs[-1])
    elif op.type in _MOVES:
        axes = tf.get_static_value(op.inputs[_MOVES[op.type]])
    else:
        return False
    if axes is None or x.shape.rank is None:
        return False
    return _row_axis(x) in [axis % x.shape.rank for axis in axes.flatten()]


def _leaves_out_examples(op: tf.Operation) -> bool:
    """Returns whether a slice begins or ends at a known place among the examples."""
    x, *limits = op.inputs
    begin, end, *_ = map(tf.get_static_value, limits)
    axis = _row_axis(x)
    if begin is None or axis is None or axis >= len(begin):
        return False
    masks = dict.fromkeys(("begin", "end", "ellipsis", "new_axis"), 0)
    if op.type == "StridedSlice":
        masks = {name: op.get_attr(f"{name}_mask") for name in masks}
    if masks["ellipsis"] or masks["new_axis"]:
        return False
    begins = bool(begin[axis]) and not masks["begin"] >> axis & 1
    is_known = op.type == "StridedSlice" and end is not None
    return begins or (is_known and not masks["end"] >> axis & 1)


def _row_axis(x: tf.Tensor) -> int | None:
    """Returns the dimension of the examples: the first one of unknown size."""
    shape = x.shape.as_list() if x.shape.rank is not None else []
    return shape.index(None) if None in shape else None


def _compares_with_zero(op: tf.Operation) -> bool:
    """Returns whether an operation compares the number of examples or positions with 0.

    The result does not depend on the number of examples.
    """
    if op.type not in _COMPARISONS:
        return False
    value = tf.get_static_value(op.inputs[1])
    is_zero = value is not None and not value.any()
    return is_zero and op.inputs[0].op.type in {*_PARTS_OF_SHAPES, "Range"}


def _is_linear(op: tf.Operation, taken: Sequence[Flow], output: tf.Tensor) -> bool:
    if op.type in _QUOTIENTS and taken[1] > Flow.COUNT:
        return False
    if op.type in ("Select", "SelectV2") and taken[0] == Flow.FREE:
        return True
    is_scaled = op.type in _SCALED and sum(x > Flow.COUNT for x in taken) == 1
    return (is_scaled or op.type in _LINEAR) and output.dtype.is_floating


def _has_rows(x: tf.Tensor) -> bool:
    is_opaque = x.dtype in (tf.variant, tf.resource) or x.shape.rank is None
    return is_opaque or _row_axis(x) is not None


def _is_known(op: tf.Operation) -> bool:
    """Returns whether an operation returns known sizes, of a shape or a part of it."""
    if op.type != "StridedSlice":
        return all(x.shape.is_fully_defined() for x in op.inputs)
    begin, end, strides = (tf.get_static_value(x) for x in op.inputs[1:4])
    shape = op.inputs[0].op.inputs[0].shape
    if begin is None or end is None or shape.rank is None or strides != [1]:
        return False
    sizes, first, last = shape.as_list(), int(begin[0]), int(end[0])
    if op.get_attr("shrink_axis_mask"):
        return sizes[first] is not None
    start = None if op.get_attr("begin_mask") else first
    stop = None if op.get_attr("end_mask") else last
    return None not in sizes[start:stop]
