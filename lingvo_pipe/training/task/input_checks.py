"""Checks of a model's input: its data sets, and each batch's weights."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from lingvo_pipe.core.errors import UserTypeError, UserValueError, Words
from lingvo_pipe.hyperparams.text_entries import entries_by_path
from lingvo_pipe.nested_map import NestedMap

# Numbers in a batch: 32 GiB in float32.
_MAX_NUMBERS = 2**33
# Params that say which data an input reads.
_DATA = re.compile(r"(data|data_dir|dataset|files|split)\b")
_MAX_TEXT = 300


def checked_batches(data: Any, method: str) -> tf.data.Dataset:
    """Returns the data set that an input's method makes, without reading it.

    Raises:
        TypeError: unless the method returns a data set of NestedMaps.
        ValueError: if it is empty, a batch is too large, or an evaluation never ends.
    """
    _check_size(data)
    path = f"{type(data).__name__}.{method}"
    batches = getattr(data, method)()
    spec = getattr(batches, "element_spec", None)
    if not isinstance(spec, NestedMap):
        kind = type(batches if spec is None else spec).__name__
        raise UserTypeError(
            path=path,
            expected="a tf.data.Dataset of NestedMaps as its result",
            got=Words(kind if spec is None else f"a data set of {kind}"),
            hint="Return for example tf.data.Dataset.from_tensor_slices("
            "lp.NestedMap(image=..., label=...)).batch(8, drop_remainder=True).",
        )
    cardinality = int(batches.cardinality())
    if method == "EvalBatches" and cardinality == tf.data.INFINITE_CARDINALITY:
        raise UserValueError(
            path=path,
            expected="each example once",
            got=Words("a data set without end"),
            hint="Leave out repeat().",
        )
    if cardinality == 0:
        raise UserValueError(
            path=path,
            expected="at least one batch",
            got=Words("an empty data set"),
            hint="Check that a batch has no more examples than there are.",
        )
    return batches


def check_weights(batch: NestedMap, may_be_infinite: bool = False) -> None:
    """Raises ValueError for weights below 0 and, by default, for ones not finite."""
    weights = batch.get("weight")
    if not isinstance(weights, tf.Tensor) or not weights.dtype.is_floating:
        return
    values = weights.numpy().ravel()
    wrong = values[(values < 0) | ~(may_be_infinite | np.isfinite(values))]
    if wrong.size:
        raise UserValueError(
            path="weight",
            expected="finite weights of at least 0 for a batch's examples",
            got=float(wrong[0]),
            hint=f"{wrong.size} of {values.size} are wrong. 0 leaves an example out.",
        )


def same_data_warning(registered: Sequence[str], used: Sequence[str]) -> str:
    """Returns a warning if changed params let the test read the training data, or "".

    `registered` are the params of the inputs of training and of the test, as texts, by
    the model's class. `used` are the same after the user's changes.
    """
    before, now = _differing(*registered), _differing(*used)
    made_equal = sorted(before - now - {"batch_size"})
    # Params of one's own input class may have any names.
    are_of_data = any(map(_DATA.match, made_equal)) or not now
    if not made_equal or not are_of_data or any(map(_DATA.match, now)):
        return ""
    values = entries_by_path(used[0])
    changes = [f"input.{values.get(path, path)}"[:_MAX_TEXT] for path in made_equal]
    return (
        "warning: training and the test read the same data, since a change holds for "
        f"both inputs: {'; '.join(changes)}. To change the training data alone, derive "
        "a model with another Train. Or evaluate the run without this change, by "
        "lp.evaluate or --job=evaler."
    )


def _differing(*texts: str) -> set[str]:
    one, two = map(entries_by_path, texts)
    return {path for path in {*one, *two} if one.get(path) != two.get(path)}


def _check_size(data: Any) -> None:
    specs = tf.nest.flatten(getattr(data, "element_spec", None))
    size = sum(spec.shape.num_elements() or 0 for spec in specs if spec is not None)
    if size > _MAX_NUMBERS:
        raise UserValueError(
            path="input.batch_size",
            expected=f"batches of at most {_MAX_NUMBERS:,} numbers",
            got=Words(f"{size:,} in {data.params.batch_size:,} examples"),
        )
