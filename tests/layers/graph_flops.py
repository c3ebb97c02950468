"""Floating-point operations counted in a traced graph, for comparison."""

from __future__ import annotations

import math

import tensorflow as tf

# For each element of the output. An activation counts as one, though GELU and SWISH are
# several operations in a graph.
_PER_ELEMENT = {
    **dict.fromkeys(["Relu", "Relu6", "LeakyRelu", "Elu", "Sigmoid", "Tanh"], 1),
    **dict.fromkeys(["Softplus", "Erfc", "AddV2", "RealDiv", "Less", "SelectV2"], 1),
    **dict.fromkeys(["Sub", "Square", "Rsqrt", "Sin", "Cos", "Minimum", "Maximum"], 1),
    "FusedBatchNormV3": 8,
    "Softmax": 5,
}
_FREE = {
    *("Placeholder", "Const", "Identity", "IdentityN", "Reshape", "StridedSlice"),
    *("ConcatV2", "Pad", "SpaceToBatchND", "BatchToSpaceND", "Cast", "StopGradient"),
    *("Transpose", "GatherV2", "Pack"),
    *("Mul", "Neg"),  # the rest of GELU and SWISH, and factors
}


def graph_flops(graph: tf.Graph) -> int:
    """Counts operations on float32; sums of batch norm and random numbers are not."""
    return sum(map(_flops, graph.get_operations()))


def _flops(op: tf.Operation) -> int:
    if op.type in _FREE or not any(x.dtype == tf.float32 for x in op.inputs):
        return 0
    num_outputs = math.prod(_undilated(op.outputs[0]).shape)
    if op.type == "Conv2D":
        return 2 * math.prod(op.inputs[1].shape[:3]) * num_outputs
    if op.type == "DepthwiseConv2dNative":
        return 2 * math.prod(op.inputs[1].shape[:2]) * num_outputs
    if op.type in ("MatMul", "BatchMatMulV2"):
        return 2 * op.inputs[0].shape[-1] * num_outputs
    if op.type in ("MaxPool", "AvgPool"):
        return math.prod(op.get_attr("ksize")) * num_outputs
    if op.type == "Mean":
        return math.prod(op.inputs[0].shape)
    assert op.type in _PER_ELEMENT, f"Add the cost of {op.type} above."
    return _PER_ELEMENT[op.type] * num_outputs


def _undilated(x: tf.Tensor) -> tf.Tensor:
    """Returns the output of a convolution, which TensorFlow splits if it is dilated."""
    for consumer in x.consumers():
        if consumer.type == "BatchToSpaceND":
            return consumer.outputs[0]
    return x
