"""Bytes of tensors by their specs."""

from collections.abc import Iterable

import tensorflow as tf


def num_bytes(specs: Iterable[tf.TensorSpec]) -> int:
    """Returns the bytes of tensors, where a tensor of unknown size counts as 0."""
    return sum((spec.shape.num_elements() or 0) * spec.dtype.size for spec in specs)
