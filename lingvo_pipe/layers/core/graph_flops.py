"""Flops of the operations of a graph.

A multiply-add of a product or convolution counts as two flops. An operation that only
moves, names or converts numbers takes none, nor does one of integers, such as a draw of
random bits. Any other takes one flop for each element of its largest input or output,
and a few take more. A function that an operation calls, such as a loop's body, counts
once.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import tensorflow as tf


def graph_flops(
    operations: Iterable[tf.Operation], without: Collection[tf.Operation] = ()
) -> int:
    """Returns the flops of all operations that are not in `without`."""
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
    return _PRODUCTS[op.type](op)


def _size(x: tf.Tensor) -> int:
    return math.prod(x.shape) if x.shape.is_fully_defined() else 0


def _function_attributes(op: tf.Operation) -> list[str]:
    attributes = op.op_def.attr
    return [x.name for x in attributes if x.type in ("func", "list(func)")]


def _called_graphs(op: tf.Operation) -> Iterator[tf.Graph]:
    for name in _function_attributes(op):
        value = op.get_attr(name)
        for function in value if isinstance(value, list) else [value]:
            # TensorFlow has no public access to the functions of a graph.
            yield op.graph._get_function(function.name).graph


def _summed(op: tf.Operation) -> int:
    """Returns the number of products that an einsum sums for an output."""
    input_labels, output_labels = op.get_attr("equation").decode().split("->")
    sizes: dict[str, int] = {}
    for labels, x in zip(input_labels.split(","), op.inputs, strict=True):
        first, _, last = labels.partition("...")
        sizes.update(zip(first, x.shape, strict=False))
        sizes.update(zip(reversed(last), reversed(x.shape), strict=False))
    return math.prod(n for label, n in sizes.items() if label not in output_labels)


def _rows(op: tf.Operation, attribute: str) -> int:
    """Returns the size of the dimension that a product of matrices sums over."""
    rows: int = op.inputs[0].shape[-2 if op.get_attr(attribute) else -1]
    return rows


def _window(kernel: tf.Tensor, num_dims: int) -> int:
    """Returns the number of products that a convolution sums for an output."""
    return math.prod(kernel.shape[:num_dims])


_Counts = Mapping[str, Callable[[tf.Operation], int]]

# Multiply-adds by the type of an operation.
_PRODUCTS: _Counts = {
    "MatMul": lambda op: _rows(op, "transpose_a") * _size(op.outputs[0]),
    "BatchMatMul": lambda op: _rows(op, "adj_x") * _size(op.outputs[0]),
    "BatchMatMulV2": lambda op: _rows(op, "adj_x") * _size(op.outputs[0]),
    "Einsum": lambda op: _summed(op) * _size(op.outputs[0]),
    "Conv2D": lambda op: _window(op.inputs[1], 3) * _size(op.outputs[0]),
    "Conv2DBackpropInput": lambda op: _window(op.inputs[1], 3) * _size(op.inputs[2]),
    "Conv2DBackpropFilter": lambda op: _window(op.outputs[0], 3) * _size(op.inputs[2]),
    "DepthwiseConv2dNative": lambda op: _window(op.inputs[1], 2) * _size(op.outputs[0]),
    "DepthwiseConv2dNativeBackpropInput": lambda op: (
        _window(op.inputs[1], 2) * _size(op.inputs[2])
    ),
    "DepthwiseConv2dNativeBackpropFilter": lambda op: (
        _window(op.outputs[0], 2) * _size(op.inputs[2])
    ),
}
# Flops of each element of the output.
_PER_OUTPUT: _Counts = {
    "FusedBatchNormV3": lambda op: 8,  # Moments, a product and a sum.
    "Softmax": lambda op: 5,  # Maximum, difference, exponential, sum and quotient.
    "AvgPool": lambda op: math.prod(op.get_attr("ksize")),
    "MaxPool": lambda op: math.prod(op.get_attr("ksize")),
}
# Operations that only move, name or convert numbers.
_FREE = {
    *("CheckNumerics", "Identity", "IdentityN", "PreventGradient", "StopGradient"),
    *("Bitcast", "Cast", "Fill", "OnesLike", "Snapshot", "ZerosLike"),
    *("EnsureShape", "ExpandDims", "Rank", "Reshape", "Shape", "ShapeN", "Size"),
    *("ConcatV2", "Pack", "Slice", "Split", "SplitV", "Squeeze", "StridedSlice"),
    *("BatchToSpaceND", "DepthToSpace", "ReverseV2", "SpaceToBatchND", "SpaceToDepth"),
    *("BroadcastTo", "GatherNd", "GatherV2", "MirrorPad", "Pad", "PadV2", "Tile"),
    *("TensorListFromTensor", "TensorListGetItem", "TensorListSetItem"),
    *("TensorListStack", "Transpose", "Unpack"),
}
