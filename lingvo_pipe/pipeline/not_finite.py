"""Which values of a step are the first that are not finite."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

from lingvo_pipe.pipeline.tracing.trace import is_differentiable


class NotFinite:
    """Is shown values one after another; keeps in mind the first that are not finite.

    Where the first are infinite, the first that are NaN are told too: an infinite value
    may be meant, as in a mask.
    """

    def __init__(self) -> None:
        self._found: list[str] = []
        self._has_nan = False

    def look_at(self, where: str, values: Iterable[tuple[str, tf.Tensor]]) -> None:
        """Takes note of values.

        Args:
            where: whose they are, as in "model/dense, micro-batch 0,".
            values: pairs of what it is, as in "output hidden", and the tensor.
        """
        for what, x in values:
            if self._has_nan or not is_differentiable(x):
                continue
            sizes = tf.abs(x)  # Of complex numbers too.
            num_nan = _count(tf.math.is_nan(sizes))
            num_infinite = _count(tf.math.is_inf(sizes))
            if num_nan or (num_infinite and not self._found):
                numbers = {"nan": num_nan, "inf": num_infinite}
                kinds = " or ".join(kind for kind, number in numbers.items() if number)
                count = f"{num_nan + num_infinite} of {x.shape.num_elements()}"
                self._found.append(f"the {what} of {where} has {kinds} in {count}")
            self._has_nan = num_nan > 0

    def raise_found(self) -> None:
        """Raises FloatingPointError saying what was found; if nothing was, nothing."""
        if self._found:
            raise FloatingPointError(f"at first {', then '.join(self._found)}")


def _count(flags: tf.Tensor) -> int:
    return int(tf.math.count_nonzero(flags))
