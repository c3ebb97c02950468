"""What Params do with any value: copy, freeze and compare it."""

from __future__ import annotations

import copy
import sys
from typing import Any

from lingvo_pipe.hyperparams.frozen import FrozenDict, FrozenList


def copy_value(value: Any, memo: dict[int, Any] | None = None) -> Any:
    """Returns a deep, unfrozen copy of `value`.

    Objects of TensorFlow and Keras (tensors, variables, dtypes, optimizers), classes
    and functions are not copied but shared.

    Args:
      value: Anything a param holds.
      memo: Copies made so far by id, as in copy.deepcopy: what is shared inside
        `value` is shared inside the copy.

    Returns:
      The copy.
    """
    memo = {} if memo is None else memo
    if id(value) in memo:
        return memo[id(value)]
    if isinstance(value, (list, dict)):
        memo[id(value)] = copied = copy.copy(value)
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            copied[key] = copy_value(item, memo)
        return copied
    if isinstance(value, tuple):
        return _rebuild_tuple(value, [copy_value(item, memo) for item in value])
    if type(value).__module__.startswith(("tensorflow", "keras")):
        return value
    return copy.deepcopy(value, memo)


def freeze_value(value: Any) -> Any:
    """Returns `value` with all Params in it frozen, lists and dicts unmodifiable.

    Of lists and dicts of some other class only the items are frozen.
    """
    if hasattr(value, "Freeze") and not isinstance(value, type):
        value.Freeze()
        return value
    if type(value) is list:
        return FrozenList(map(freeze_value, value))
    if type(value) is dict:
        return FrozenDict({key: freeze_value(item) for key, item in value.items()})
    if isinstance(value, tuple):
        return _rebuild_tuple(value, map(freeze_value, value))
    if isinstance(value, (list, dict)):
        items = value.values() if isinstance(value, dict) else value
        for item in items:
            freeze_value(item)
    return value


def same_value(a: Any, b: Any) -> bool:
    """Whether two values are equal, NaN being equal to NaN.

    Arrays are equal if their types and all elements are; tensors only if they are
    one object.
    """
    if a is b:
        return True
    a, b = as_plain(a), as_plain(b)
    for kind in (list, tuple):
        if isinstance(a, kind) and isinstance(b, kind):
            return len(a) == len(b) and all(map(same_value, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same_value(a[k], b[k]) for k in a)
    if hasattr(a, "__array__") or hasattr(b, "__array__"):
        return _same_array(a, b)
    return bool(a == b) or (_is_nan(a) and _is_nan(b))


def as_plain(value: Any) -> Any:
    """Returns a NumPy scalar as Python's own number, anything else as it is."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        return value.item()
    return value


def _rebuild_tuple(value: tuple, items: Any) -> tuple:
    if hasattr(value, "_make"):  # a namedtuple
        return value._make(items)
    return type(value)(items)


def _same_array(a: Any, b: Any) -> bool:
    numpy = sys.modules.get("numpy")
    if numpy is None or not all(isinstance(x, numpy.ndarray) for x in (a, b)):
        return False
    return a.dtype == b.dtype and same_value(a.tolist(), b.tolist())


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and value != value
