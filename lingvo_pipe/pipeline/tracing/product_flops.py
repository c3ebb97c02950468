"""Multiply-adds of matrix products and convolutions, and of their gradients.

They decide how long the two halves of a backward pass take, and what a recomputation
leaves out. Operations within other functions, such as the bodies of loops, are not
counted.
"""

import itertools
import math
from collections.abc import Iterable

import tensorflow as tf

from lingvo_pipe.layers.model_size import multiply_adds


def product_flops(operations: Iterable[tf.Operation]) -> int:
    """Returns the multiply-adds of products with known shapes."""
    return sum(
        _CONVOLUTION_GRADIENTS.get(op.type, multiply_adds)(op)
        for op in operations
        if all(x.shape.is_fully_defined() for x in (*op.inputs, *op.outputs))
    )


def calls_functions(operations: Iterable[tf.Operation]) -> bool:
    """Returns whether some operations call functions, such as the bodies of loops."""
    attributes = itertools.chain.from_iterable(op.op_def.attr for op in operations)
    return any(attribute.type in ("func", "list(func)") for attribute in attributes)


def _of_convolution(op: tf.Operation, kernel: tf.Tensor) -> int:
    """Counts the kernel's products at each place of the outputs' gradients."""
    num_summed = 2 if op.type.startswith("Depthwise") else 3
    return math.prod(op.inputs[2].shape) * math.prod(kernel.shape[:num_summed])


_CONVOLUTION_GRADIENTS = {
    f"{kind}{half}": count
    for kind in ("Conv2D", "DepthwiseConv2dNative")
    for half, count in (
        ("BackpropInput", lambda op: _of_convolution(op, op.inputs[1])),
        ("BackpropFilter", lambda op: _of_convolution(op, op.outputs[0])),
    )
}
