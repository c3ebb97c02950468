"""Checks of a model's input: its data sets, and each batch's weights."""

from typing import Any

import numpy as np
import tensorflow as tf

from lingvo_pipe.core.errors import UserTypeError, UserValueError
from lingvo_pipe.nested_map import NestedMap

_WEIGHT = "weight"
# Numbers in a batch: 32 GiB of them.
_MAX_NUMBERS = 2**33


def checked_batches(data: Any, method: str) -> tf.data.Dataset:
    """Returns the unread batches of an input's method.

    Raises:
        TypeError: unless they are a data set of NestedMaps.
        ValueError: if the data set is empty, or a batch is too large.
    """
    _check_size(data)
    path = f"{type(data).__name__}.{method}"
    batches = getattr(data, method)()
    spec = getattr(batches, "element_spec", None)
    if not isinstance(spec, NestedMap):
        kind = type(batches if spec is None else spec).__name__
        raise UserTypeError(
            f"{path}: expected a tf.data.Dataset of NestedMaps as its result, got "
            f"{'a data set of ' if spec is not None else ''}{kind}. Return for example "
            "tf.data.Dataset.from_tensor_slices(lp.NestedMap(image=..., label=...))"
            ".batch(8, drop_remainder=True)."
        )
    if int(batches.cardinality()) == 0:
        raise UserValueError(
            f"{path}: expected at least one batch, got an empty data set. Check the "
            "data, and that a batch has no more examples than there are."
        )
    return batches


def check_weights(batch: NestedMap, may_be_infinite: bool = False) -> None:
    """Checks the weights of a batch's examples.

    Raises:
        ValueError: if one is negative or NaN, or infinite unless `may_be_infinite`.
    """
    weights = batch.get(_WEIGHT)
    if not isinstance(weights, tf.Tensor) or not weights.dtype.is_floating:
        return
    values = weights.numpy().ravel()
    wrong = values[(values < 0) | ~(may_be_infinite | np.isfinite(values))]
    if wrong.size:
        raise UserValueError(
            f"{_WEIGHT}: expected finite weights of at least 0 for a batch's "
            f"examples, got {float(wrong[0])!r} in {wrong.size} of {values.size}. "
            "Correct the input; 0 leaves an example out."
        )


def _check_size(data: Any) -> None:
    specs = tf.nest.flatten(getattr(data, "element_spec", None))
    sizes = [spec.shape.num_elements() or 0 for spec in specs if spec is not None]
    if sum(sizes) > _MAX_NUMBERS:
        raise UserValueError(
            f"input.batch_size: expected batches of at most {_MAX_NUMBERS:,} numbers, "
            f"got {sum(sizes):,} in {data.params.batch_size:,} examples. Set a smaller "
            "batch_size, or smaller examples."
        )
