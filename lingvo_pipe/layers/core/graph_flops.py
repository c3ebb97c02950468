"""Flops of the operations of a graph.

A multiply-add of a product or convolution counts as two flops. An operation that only
moves, names or converts numbers, or that works on integers, takes none. `_PER_OUTPUT`
has operations with counts of their own. Any other takes one flop for each element of
its largest input or output.

The body of a loop counts once for each iteration if the largest number of iterations is
static, and otherwise once. Any other function that an operation calls counts once.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import tensorflow as tf

_LOOPS = ("While", "StatelessWhile")
_NO_FLOPS: Mapping[tf.Operation, int] = {}


def graph_flops(
    operations: Iterable[tf.Operation], known: Mapping[tf.Operation, int] = _NO_FLOPS
) -> int:
    """Returns the total flops of operations. `known` gives some operations' flops."""
    return sum(known[op] if op in known else _flops(op, known) for op in operations)


def multiply_adds(operations: Iterable[tf.Operation], in_functions: bool = True) -> int:
    """Returns the multiply-adds of products, convolutions and their gradients.

    Products of unknown shapes do not count. Products within called functions count only
    if `in_functions`.
    """
    total = 0
    for op in operations:
        if not _function_attributes(op):
            total += _multiply_adds(op)
        elif in_functions:
            total += _num_calls(op) * sum(map(multiply_adds, _called_operations(op)))
    return total


def unknown_loops(
    operations: Iterable[tf.Operation], known: Mapping[tf.Operation, int] = _NO_FLOPS
) -> Iterator[tf.Operation]:
    """Yields loops of unknown length that have flops, unless these are in `known`."""
    for op in operations:
        if op not in known and _function_attributes(op):
            if _is_unknown_loop(op) and _flops(op, known):
                yield op
            for called in _called_operations(op):
                yield from unknown_loops(called, known)


def calls_functions(operations: Iterable[tf.Operation]) -> bool:
    """Returns whether some operations call functions, such as the bodies of loops."""
    return any(_function_attributes(op) for op in operations)


def _flops(op: tf.Operation, known: Mapping[tf.Operation, int]) -> int:
    if _function_attributes(op):
        once = sum(graph_flops(called, known) for called in _called_operations(op))
        return _num_calls(op) * once
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


def _num_calls(op: tf.Operation) -> int:
    return 1 if op.type not in _LOOPS or _is_unknown_loop(op) else _iterations(op)


def _is_unknown_loop(op: tf.Operation) -> bool:
    return op.type in _LOOPS and _iterations(op) < 0


def _iterations(op: tf.Operation) -> int:
    """Returns the largest number of iterations of a loop, or -1 if that is unknown.

    The first two inputs of TensorFlow's loops are a counter, which starts at 0, and the
    largest number of iterations, which is -1 if there is no limit.
    """
    first = op.inputs[:2]
    if any(x.shape.rank != 0 or not x.dtype.is_integer for x in first):
        return -1
    counter, count = map(_static_value, first)
    return -1 if counter is None or counter or count is None else int(count)


def _static_value(x: tf.Tensor) -> np.ndarray | None:
    if x.op.type == "Max":  # Keras's loops take it of the sequences' lengths.
        value = _static_value(x.op.inputs[0])
        return None if value is None else np.max(value)
    return None if (value := tf.get_static_value(x)) is None else np.asarray(value)


def _size(x: tf.Tensor) -> int:
    return math.prod(x.shape) if x.shape.is_fully_defined() else 0


def _function_attributes(op: tf.Operation) -> list[str]:
    attributes = op.op_def.attr
    return [x.name for x in attributes if x.type in ("func", "list(func)")]


def _called_operations(op: tf.Operation) -> Iterator[list[tf.Operation]]:
    for name in _function_attributes(op):
        value = op.get_attr(name)
        for function in value if isinstance(value, list) else [value]:
            # TensorFlow has no public access to the functions of a graph.
            yield op.graph._get_function(function.name).graph.get_operations()


def _summed(op: tf.Operation) -> int:
    """Returns the number of products that an einsum sums for each output element."""
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
    """Returns the number of products that a convolution sums per output element."""
    return math.prod(kernel.shape[:num_dims])


_Counts = Mapping[str, Callable[[tf.Operation], int]]

# Multiply-adds by the type of an operation.
_PRODUCTS: _Counts = {
    "MatMul": lambda op: _rows(op, "transpose_a") * _size(op.outputs[0]),
    "BatchMatMul": lambda op: _rows(op, "adj_x") * _size(op.outputs[0]),
    "BatchMatMulV2": lambda op: _rows(op, "adj_x") * _size(op.outputs[0]),
    "BatchMatMulV3": lambda op: _rows(op, "adj_x") * _size(op.outputs[0]),
    "SparseMatMul": lambda op: _rows(op, "transpose_a") * _size(op.outputs[0]),
    "SparseTensorDenseMatMul": lambda op: _size(op.inputs[1]) * op.outputs[0].shape[-1],
    "Einsum": lambda op: _summed(op) * _size(op.outputs[0]),
    "Conv2D": lambda op: _window(op.inputs[1], 3) * _size(op.outputs[0]),
    "Conv2DBackpropInput": lambda op: _window(op.inputs[1], 3) * _size(op.inputs[2]),
    "Conv2DBackpropFilter": lambda op: _window(op.outputs[0], 3) * _size(op.inputs[2]),
    "Conv3D": lambda op: _window(op.inputs[1], 4) * _size(op.outputs[0]),
    "Conv3DBackpropInputV2": lambda op: _window(op.inputs[1], 4) * _size(op.inputs[2]),
    "Conv3DBackpropFilterV2": lambda op: (
        _window(op.outputs[0], 4) * _size(op.inputs[2])
    ),
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
