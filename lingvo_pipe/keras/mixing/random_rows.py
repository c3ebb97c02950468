"""Random examples, at once and in two parts, and comparisons of their results.

all             r0 r1 r2 ... r10
two parts       r0 ... r3 | r4 ... r10
another first   NaN r1 r2 ... r10
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

FEW = 3
_Tolerance = tuple[float, float]  # Relative and absolute.
ROUNDED: _Tolerance = (0.02, 1e-3)
# A loss may have a small coefficient, such as 0.001 for load balancing.
EXACT: _Tolerance = (1e-4, 1e-7)


class Rows(NamedTuple):
    """Numbers of examples, and the size of their unknown dimensions."""

    number: int
    in_first_part: int
    size: int

    @property
    def everything(self) -> slice:
        """All examples."""
        return slice(0, self.number)

    @property
    def parts(self) -> tuple[slice, slice]:
        """The first part and the second one."""
        return slice(0, self.in_first_part), slice(self.in_first_part, self.number)


# Some layers need larger dimensions, or take only even numbers of examples.
ROWS = (
    *(Rows(11, 4, FEW), Rows(16, 8, FEW), Rows(11, 4, 16), Rows(16, 8, 16)),
    Rows(16, 8, 64),
)


def random_values(
    shape: Sequence[int], dtype: Any, random: np.random.Generator
) -> np.ndarray:
    """Returns normal floats, or integers 0 and 1."""
    dtype = tf.as_dtype(dtype)
    if dtype.is_floating:
        return random.normal(size=shape).astype(dtype.as_numpy_dtype)
    return random.integers(0, 2, shape).astype(dtype.as_numpy_dtype)


def with_another_first(
    values: np.ndarray, row_axis: int | None, number: float
) -> np.ndarray:
    """Returns values whose first example has a number everywhere.

    Integers become 1 for 0, and 0 for all others.
    """
    if row_axis is None:
        return values
    changed = values.copy()
    first = np.moveaxis(changed, row_axis, 0)[:1]
    np.copyto(first, number if tf.as_dtype(values.dtype).is_floating else first == 0)
    return changed


def is_joined(whole: np.ndarray, first: np.ndarray, second: np.ndarray) -> bool:
    """Returns whether a result for all examples consists of the parts' results.

    A result without a dimension of examples is the same for each part.
    """
    if not whole.ndim == first.ndim == second.ndim:
        return False
    axis = row_axis(whole.shape, first.shape)
    if axis is None:
        return is_close(whole, first) and is_close(whole, second)
    sizes = [x.shape[:axis] + x.shape[axis + 1 :] for x in (first, second)]
    if sizes[0] != sizes[1]:  # Unique values may differ in number.
        return False
    return is_close(whole, np.concatenate([first, second], axis))


def are_others_equal(
    results: np.ndarray, changed: np.ndarray, axis: int, rows: Rows
) -> bool:
    """Returns whether results of all examples but the first are equal.

    `axis` is the dimension of the examples, each of which may have several places.
    """
    if results.shape != changed.shape or results.shape[axis] % rows.number:
        return False
    others = range(results.shape[axis] // rows.number, results.shape[axis])
    return is_close(np.take(results, others, axis), np.take(changed, others, axis))


def is_mean(results: Sequence[np.ndarray], rows: Rows, tolerance: _Tolerance) -> bool:
    """Returns whether a result for all examples is the mean of the parts'."""
    whole, first, second = results
    part = rows.in_first_part / rows.number
    return is_close(whole, part * first + (1 - part) * second, tolerance)


def is_close(a: np.ndarray, b: np.ndarray, tolerance: _Tolerance = ROUNDED) -> bool:
    """Returns whether arrays are of one shape, and almost equal. NaN equals NaN."""
    return a.shape == b.shape and np.allclose(a, b, *tolerance, equal_nan=True)


def row_axis(whole: Sequence[int], part: Sequence[int]) -> int | None:
    """Returns the first dimension in which the shapes of all and a part differ."""
    sizes = zip(whole, part, strict=True)
    return next((axis for axis, (a, b) in enumerate(sizes) if a != b), None)
