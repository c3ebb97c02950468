"""Cutting a mini-batch into micro-batches, and putting it together again.

Shapes: B examples in the mini-batch, M micro-batches, b = B / M examples in each.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def as_tensors(batch: Any, where: str) -> Any:
    """The batch with everything but None as a tensor.

    Args:
        batch: a structure of tensors, of what can be converted to them, and None.
        where: the layer's path, for errors.

    Raises:
        ValueError: if there is something that is no dense tensor.
    """

    def as_tensor(x: Any) -> tf.Tensor | None:
        if x is None:
            return None
        try:
            return tf.convert_to_tensor(x)
        except (TypeError, ValueError) as error:
            raise ValueError(
                "Inputs and targets of a pipeline must be dense tensors; "
                f"{where} was given a {type(x).__name__}. Pad it, or hand over its "
                "parts that have a row for each example."
            ) from error

    return tf.nest.map_structure(as_tensor, batch)


def micro_batch_size(
    tensors: Any, num_micro_batches: int, wanted: int | None, where: str
) -> int:
    """Returns b, after checking that the mini-batch can be cut.

    Args:
        tensors: a structure of tensors `[B, ...]` and None.
        num_micro_batches: M.
        wanted: b as the user states it, or None.
        where: the layer's path, for errors.

    Raises:
        ValueError: if B is unknown or not the same everywhere, M does not divide it, or
            `wanted` is not B / M.
    """
    present = [x for x in tf.nest.flatten(tensors) if x is not None]
    sizes = {x.shape[0] if x.shape.rank else None for x in present}
    batch_size = sizes.pop() if len(sizes) == 1 else None
    if batch_size is None:
        shapes = ", ".join(str(x.shape) for x in present)
        raise ValueError(
            "Inputs and targets of a pipeline must have the same, known number of "
            f"examples in their first dimension; {where} was given shapes "
            f"{shapes or 'none'}. Batch with drop_remainder=True, or set the static "
            "shape."
        )
    if batch_size < 1 or batch_size % num_micro_batches:
        raise ValueError(
            "The mini-batch must be a positive multiple of num_micro_batches; "
            f"{where} was given {batch_size} examples for {num_micro_batches} "
            "micro-batches. Change the input's batch_size or num_micro_batches."
        )
    size = batch_size // num_micro_batches
    if wanted is not None and wanted != size:
        raise ValueError(
            "micro_batch_size times num_micro_batches must be the mini-batch; "
            f"{where} has {wanted} x {num_micro_batches}, and was given {batch_size} "
            "examples. Leave micro_batch_size None, or change one of the three."
        )
    return size


def split(tensors: Any, num_micro_batches: int) -> Any:
    """`[B, ...]` -> `[M, b, ...]` for every tensor; None stays."""
    return _reshape(tensors, lambda s: [num_micro_batches, s[0] // num_micro_batches])


def merge(tensors: Any) -> Any:
    """`[M, b, ...]` -> `[B, ...]` for every tensor; None stays.

    Raises:
        ValueError: if there are tensors `[M]`.
    """
    scalars = [
        x for x in tf.nest.flatten(tensors) if x is not None and x.shape.rank < 2
    ]
    if scalars:
        raise ValueError(
            "The last cell's outputs must have a row for each example; a scalar can't "
            "be put together from micro-batches. Give it the shape [B]."
        )
    return _reshape(tensors, lambda s: [s[0] * s[1]])


def _reshape(tensors: Any, first: Any) -> Any:
    def reshape(x: Any) -> Any:
        if x is None:
            return None
        shape = x.shape.as_list()
        start = first(shape)
        kept = 1 if len(start) == 2 else 2
        return tf.reshape(x, [*start, *shape[kept:]])

    return tf.nest.map_structure(reshape, tensors)
