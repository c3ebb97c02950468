"""Multiply-adds of matrix products and convolutions, by the shapes of operations.

They decide how long the two halves of a backward pass take. Operations within other
functions, such as the bodies of loops, are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import tensorflow as tf


def product_flops(operations: Iterable[tf.Operation]) -> int:
    """Returns the multiply-adds of products with known shapes."""
    return sum(
        _COUNTS[op.type](op)
        for op in operations
        if op.type in _COUNTS
        and all(x.shape.is_fully_defined() for x in (*op.inputs, *op.outputs))
    )


def _of_matmul(op: tf.Operation) -> int:
    is_transposed = op.get_attr("transpose_a" if op.type == "MatMul" else "adj_x")
    return _size(op.outputs[0]) * int(op.inputs[0].shape[-2 if is_transposed else -1])


def _of_einsum(op: tf.Operation) -> int:
    """Multiplies the outputs' size by the sizes of labels that only the inputs have."""
    terms, made = op.get_attr("equation").decode().split("->")
    sizes: dict[str, int] = {}
    for term, x in zip(terms.split(","), op.inputs, strict=True):
        sizes.update(_label_sizes(term, x.shape.as_list()))
    return _size(op.outputs[0]) * math.prod(
        size for label, size in sizes.items() if label not in made
    )


def _label_sizes(term: str, shape: list[int]) -> Iterator[tuple[str, int]]:
    left, _, right = term.partition("...")
    yield from zip(left, shape, strict=False)
    yield from zip(reversed(right), reversed(shape), strict=False)


def _of_convolution(moved: int, kernel: int) -> Callable[[tf.Operation], int]:
    """Counts by the tensor of all places and the kernel, by their input, or output -1.

    Each place of a channel takes the kernel's height, width and input channels.
    """

    def count(op: tf.Operation) -> int:
        places, filters = (_tensor(op, i) for i in (moved, kernel))
        channels = int(filters.shape[-1])
        if op.type.startswith("Depthwise"):
            channels *= int(filters.shape[-2])
        return _size(places) * (_size(filters) // channels)

    return count


def _tensor(op: tf.Operation, i: int) -> tf.Tensor:
    return op.outputs[0] if i < 0 else op.inputs[i]


def _size(x: tf.Tensor) -> int:
    return int(x.shape.num_elements())


_OUTPUT = -1
_COUNTS: dict[str, Callable[[tf.Operation], int]] = {
    **dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2"), _of_matmul),
    "Einsum": _of_einsum,
    **{
        f"{kind}{half}": _of_convolution(*tensors)
        for kind in ("Conv2D", "DepthwiseConv2dNative")
        for half, tensors in (
            ("", (_OUTPUT, 1)),
            ("BackpropInput", (2, 1)),
            ("BackpropFilter", (2, _OUTPUT)),
        )
    },
}
