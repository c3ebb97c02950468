"""Functions of nested structures in which None stands for an absent tensor."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError, Words


def present(structure: Any) -> list[Any]:
    """Returns a flat list of the leaves that are not None."""
    return [x for x in tf.nest.flatten(structure) if x is not None]


def map_present(function: Callable, structure: Any) -> Any:
    """Returns the structure with `function` applied to all leaves but None."""
    return tf.nest.map_structure(
        lambda x: None if x is None else function(x), structure
    )


def pack_present(structure: Any, flat: Iterable[Any]) -> Any:
    """Returns the structure with `flat` in place of the leaves that are not None."""
    remaining = iter(flat)
    return map_present(lambda x: next(remaining), structure)


def as_tensors(structure: Any) -> Any:
    """Returns the structure with tensors in place of NumPy's arrays."""
    return tf.nest.map_structure(
        lambda x: tf.convert_to_tensor(x) if isinstance(x, np.ndarray) else x, structure
    )


def spec_of(x: Any) -> tf.TensorSpec:
    """Returns the tf.TensorSpec of a tensor: shape and dtype."""
    return tf.TensorSpec(x.shape, x.dtype)


def is_differentiable(x: Any) -> bool:
    """Returns whether a tensor can have a gradient, by its dtype."""
    return x.dtype.is_floating or x.dtype.is_complex


def as_args(outputs: Any) -> tuple:
    """Returns a layer's outputs as the positional inputs of the next layer."""
    return tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,)


def one_or_all(values: Sequence[Any]) -> Any:
    """Returns a layer's outputs: the only value, or a tuple of several values."""
    return values[0] if len(values) == 1 else tuple(values)


def on_this_host(tensors: Any) -> Any:
    """Copies nested tensors to this process. Call it as a part of a tf.function.

    Each read of a single tensor from a worker takes 2 KiB of the worker's memory, which
    TensorFlow frees only when the trainer ends. A copy within a function takes none.
    """
    with tf.device("/CPU:0"):
        return map_present(tf.identity, tensors)


def wide_dtype(dtype: tf.DType) -> tf.DType:
    """Returns the dtype to sum numbers in: float64 for float64, else float32."""
    return tf.float64 if dtype == tf.float64 else tf.float32


def wide_sum(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Adds two tensors, in the wider of their dtypes."""
    wide = max(a.dtype, b.dtype, key=lambda dtype: dtype.size)
    return tf.cast(a, wide) + tf.cast(b, wide)


def as_indices(x: Any, path: str) -> tf.Tensor:
    """Returns integers as int32 or int64, the dtypes that operations take as indices.

    Raises:
        ValueError: if `x`, at `path`, has no integers.
    """
    x = tf.convert_to_tensor(x)
    if not x.dtype.is_integer:
        expected, got = "integers, such as int32", Words(f"{x.dtype.name} {x.shape}")
        raise UserValueError(path=path, expected=expected, got=got)
    if x.dtype in (tf.int32, tf.int64):
        return x
    return tf.cast(x, tf.int32 if x.dtype.size < 4 else tf.int64)
