"""Shape: the shape of a tensor in FPropMeta, a tuple with Lingvo's methods.

def FPropMeta(cls, p, inputs):
    flops = 2 * inputs.num_elements() * p.output_dim
    return NestedMap(flops=flops, out_shapes=(inputs[:-1] + [p.output_dim],))
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.checks import is_count, is_integer
from lingvo_pipe.core.errors import UserValueError


class Shape(tuple):
    """The dimensions of a tensor: integers from 0, or None if unknown.

    Slices of a Shape are Shapes. `dtype` is the tensor's dtype, or None if unknown.
    """

    dtype: tf.DType | None

    def __new__(cls, dims: Iterable[Any], dtype: tf.DType | None = None) -> Shape:
        sizes = list(dims)
        for size in sizes:
            if size is not None and not is_count(size, 0):
                raise UserValueError(
                    path="Dimension of a Shape",
                    expected="an integer of at least 0, or None if it is unknown",
                    got=size,
                    hint="There are no symbolic dimensions. Write the micro-batch's.",
                )
        shape = super().__new__(cls, (x if x is None else int(x) for x in sizes))
        shape.dtype = dtype
        return shape

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self)

    @property
    def size(self) -> int | None:
        """Number of elements, or None if a dimension is unknown."""
        return None if None in self else math.prod(self)

    def num_elements(self) -> int | None:
        """Returns the number of elements, or None if a dimension is unknown."""
        return self.size

    def ToTensorShape(self) -> tf.TensorShape:
        """Returns this shape as a tf.TensorShape."""
        return tf.TensorShape(self)

    def __getitem__(self, key: Any) -> Any:
        value = super().__getitem__(key)
        return Shape(value) if isinstance(key, slice) else value

    def __add__(self, other: Any) -> Shape:
        return Shape([*self, *other])

    def __radd__(self, other: Any) -> Shape:
        return Shape([*other, *self])


def as_shapes(value: Any) -> Any:
    """Converts nested shapes and tensors to Shapes, which keep a tensor's dtype."""
    if isinstance(value, (tf.Tensor, tf.TensorSpec)):
        return Shape(value.shape, value.dtype)
    if isinstance(value, tf.TensorShape):
        return Shape(value)
    if isinstance(value, Shape) or not isinstance(value, (Mapping, list, tuple)):
        return value
    if not isinstance(value, Mapping):
        is_shape = all(x is None or is_integer(x) for x in value)
        if is_shape and (not value or any(map(is_integer, value))):
            return Shape(value)
    return _rebuilt(value, as_shapes)


def as_specs(value: Any, default: tf.DType) -> Any:
    """Converts nested Shapes to tf.TensorSpecs, whose dtype is `default` if unknown."""
    if isinstance(value, Shape):
        return tf.TensorSpec(value, value.dtype or default)
    if isinstance(value, (Mapping, list, tuple)):
        return _rebuilt(value, lambda x: as_specs(x, default))
    if value is None:
        return None
    raise UserValueError(
        path="A shape",
        expected="a tuple of integers such as (8, 32), a tf.TensorSpec, or None",
        got=value,
    )


def _rebuilt(container: Any, convert: Callable[[Any], Any]) -> Any:
    kind = type(container)
    if isinstance(container, Mapping):
        return kind({key: convert(x) for key, x in container.items()})
    items = map(convert, container)
    return kind(*items) if hasattr(container, "_fields") else kind(items)


def on_shapes(fprop_meta: Callable) -> Callable:
    """Wraps an FPropMeta so that all shapes that it takes and returns are Shapes."""

    @functools.wraps(fprop_meta)
    def wrapped(*args: Any, **named: Any) -> Any:
        return as_shapes(fprop_meta(*map(as_shapes, args), **as_shapes(named)))

    return wrapped
