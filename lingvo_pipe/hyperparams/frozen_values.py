"""Functions that copy, freeze and compare the values that Params hold."""

import copy
import sys
from typing import Any

from lingvo_pipe.core.errors import UserTypeError


def copy_value(value: Any, memo: dict[int, Any] | None = None) -> Any:
    """Returns a deep, unfrozen copy. Objects of TensorFlow and Keras are shared."""
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
    if type(value).__module__.partition(".")[0] in ("tensorflow", "keras"):
        return value
    return copy.deepcopy(value, memo)


def freeze_value(value: Any) -> Any:
    """Freezes Params in `value`, and returns it with unmodifiable lists and dicts."""
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
        for item in value.values() if isinstance(value, dict) else value:
            freeze_value(item)
    return value


def same_value(a: Any, b: Any) -> bool:
    """Returns whether two values are equal: NaN equals NaN, a tensor only itself."""
    if a is b:
        return True
    a, b = as_plain(a), as_plain(b)
    for kind in (list, tuple):
        if isinstance(a, kind) and isinstance(b, kind):
            return len(a) == len(b) and all(map(same_value, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same_value(a[k], b[k]) for k in a)
    if hasattr(a, "__array__") or hasattr(b, "__array__"):
        are_arrays = _is_array(a) and _is_array(b) and a.dtype == b.dtype
        return are_arrays and same_value(a.tolist(), b.tolist())
    return bool(a == b) or (_is_nan(a) and _is_nan(b))


def as_plain(value: Any) -> Any:
    """Returns a NumPy scalar as Python's own number, any other value unchanged."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        return value.item()
    return value


def _refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
    kind = "list" if isinstance(self, list) else "dict"
    raise UserTypeError(
        f"Cannot change a {kind} in frozen Params.", hint="Edit a copy: params.Copy()."
    )


class FrozenList(list):
    """A list that cannot be changed. It equals a plain list with the same items."""

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = extend = insert = remove = pop = clear = sort = reverse = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenList, (list(self),)

    def __copy__(self) -> list:
        return list(self)


class FrozenDict(dict):
    """A dict that cannot be changed. It equals a plain dict with the same items."""

    __setitem__ = __delitem__ = __ior__ = _refuse
    update = setdefault = pop = popitem = clear = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)

    def __copy__(self) -> dict:
        return dict(self)


def _rebuild_tuple(value: tuple, items: Any) -> tuple:
    return getattr(value, "_make", type(value))(items)  # `_make` of a namedtuple.


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and value != value
