"""Flops of the operations of a graph.

A multiply-add of a product or convolution counts as two flops. An operation that only
moves, names or converts numbers takes none, nor does one of integers, such as a draw of
random bits. Any other takes one flop for each element of its largest input or output,
and a few take more. A function that an operation calls, such as a loop's body, counts
once.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator

import tensorflow as tf


def graph_flops(
    operations: Iterable[tf.Operation], without: Collection[tf.Operation] = ()
) -> int:
    """Returns the flops of operations `without` some of them."""
    return sum(_flops(op, without) for op in operations if op not in without)


def product_flops(operations: Iterable[tf.Operation]) -> int:
    """Returns the multiply-adds of products, convolutions and their gradients.

    Not counted are products of unknown shapes, and those within called functions.
    """
    return sum(map(_multiply_adds, operations))


def calls_functions(operations: Iterable[tf.Operation]) -> bool:
    """Returns whether some operations call functions, such as the bodies of loops."""
    return any(_function_attributes(op) for op in operations)


def _flops(op: tf.Operation, without: Collection[tf.Operation]) -> int:
    if _function_attributes(op):
        graphs = _called_graphs(op)
        return sum(graph_flops(graph.get_operations(), without) for graph in graphs)
    if op.type in _FREE or not any(x.dtype.is_floating for x in op.inputs):
        return 0
    if op.type in _PRODUCTS:
        return 2 * _multiply_adds(op)
    if op.type in _PER_OUTPUT:
        return _PER_OUTPUT[op.type](op) * _size(op.outputs[0])
    return max(map(_size, (*op.inputs, *op.outputs)))


def _multiply_adds(op: tf.Operation) -> int:
    tensors = (*op.inputs, *op.outputs)
    if op.type not in _PRODUCTS or not all(x.shape.is_fully_defined() for x in tensors):
        return 0
    return math.prod(_PRODUCTS[op.type](op))


def _size(x: tf.Tensor) -> int:
    return math.prod(x.shape) if x.shape.is_fully_defined() else 0


def _function_attributes(op: tf.Operation) -> list[str]:
    attributes = op.op_def.attr
    return [x.name for x in attributes if x.type in ("func", "list(func)")]


def _called_graphs(op: tf.Operation) -> Iterator[tf.Graph]:
    for name in _function_attributes(op):
        value = op.get_attr(name)
        for function in value if isinstance(value, list) else [value]:
            yield op.graph._get_function(getattr(function, "name", function)).graph


def _summed(op: tf.Operation) -> list[int]:
    """Returns the sizes of the dimensions that an einsum sums over."""
    input_labels, output_labels = op.get_attr("equation").decode().split("->")
    sizes: dict[str, int] = {}
    for labels, x in zip(input_labels.split(","), op.inputs, strict=True):
        first, _, last = labels.partition("...")
        sizes.update(zip(first, x.shape, strict=False))
        sizes.update(zip(reversed(last), reversed(x.shape), strict=False))
    return [size for label, size in sizes.items() if label not in output_labels]


def _rows(op: tf.Operation, attribute: str) -> int:
    """Returns the size of the dimension that a product of matrices sums over."""
    return op.inputs[0].shape[-2 if op.get_attr(attribute) else -1]


# By the type of an operation, sizes whose product is the number of multiply-adds.
_PRODUCTS: dict[str, Callable[[tf.Operation], tuple]] = {
    "MatMul": lambda op: (_rows(op, "transpose_a"), *op.outputs[0].shape),
    "BatchMatMul": lambda op: (_rows(op, "adj_x"), *op.outputs[0].shape),
    "BatchMatMulV2": lambda op: (_rows(op, "adj_x"), *op.outputs[0].shape),
    "Einsum": lambda op: (*_summed(op), *op.outputs[0].shape),
    "Conv2D": lambda op: (*op.inputs[1].shape[:3], *op.outputs[0].shape),
    "Conv2DBackpropInput": lambda op: (*op.inputs[1].shape[:3], *op.inputs[2].shape),
    "Conv2DBackpropFilter": lambda op: (*op.outputs[0].shape[:3], *op.inputs[2].shape),
    "DepthwiseConv2dNative": lambda op: (*op.inputs[1].shape[:2], *op.outputs[0].shape),
    "DepthwiseConv2dNativeBackpropInput": lambda op: (
        *(*op.inputs[1].shape[:2], *op.inputs[2].shape),
    ),
    "DepthwiseConv2dNativeBackpropFilter": lambda op: (
        *(*op.outputs[0].shape[:2], *op.inputs[2].shape),
    ),
}
# Flops for each element of the output.
_PER_OUTPUT: dict[str, Callable[[tf.Operation], int]] = {
    "FusedBatchNormV3": lambda op: 8,  # Moments, a product and a sum.
    "Softmax": lambda op: 5,  # Maximum, difference, exponential, sum and quotient.
    "AvgPool": lambda op: math.prod(op.get_attr("ksize")),
    "MaxPool": lambda op: math.prod(op.get_attr("ksize")),
}
_FREE = {
    *("BatchToSpaceND", "Bitcast", "BroadcastTo", "Cast", "CheckNumerics", "ConcatV2"),
    *(
        "DepthToSpace",
        "EnsureShape",
        "ExpandDims",
        "Fill",
        "GatherNd",
        "GatherV2",
        "Identity",
    ),
    *("IdentityN", "MirrorPad", "OnesLike", "Pack", "Pad", "PadV2", "PreventGradient"),
    *("Rank", "Reshape", "ReverseV2", "Shape", "ShapeN", "Size", "Slice", "Snapshot"),
    *("SpaceToBatchND", "SpaceToDepth", "Split", "SplitV", "Squeeze", "StopGradient"),
    *("StridedSlice", "TensorListFromTensor", "TensorListGetItem", "Tile", "Transpose"),
    *("TensorListSetItem", "TensorListStack", "Unpack", "ZerosLike"),
}
