"""Values as text that reads back as the same value."""

from __future__ import annotations

import enum
import re
from typing import Any

from lingvo_pipe.hyperparams.frozen import FrozenDict, FrozenList
from lingvo_pipe.hyperparams.params import Params
from lingvo_pipe.hyperparams.symbols import symbol_text
from lingvo_pipe.hyperparams.templates import template_text
from lingvo_pipe.hyperparams.values import as_plain

# Names of dtypes that are no ordinary words: bare ones are read as dtypes.
PLAIN_DTYPE = re.compile(r"(bfloat|float|u?int|complex)\d+")

_KINDS = {
    type(None): "None",
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    list: "list",
    FrozenList: "list",
    tuple: "tuple",
    dict: "dict",
    FrozenDict: "dict",
}


def kind_of(value: Any) -> str:
    """Returns the name of a value's type in texts, or "" if it has no text form."""
    value = as_plain(value)
    if type(value) in _KINDS:
        return _KINDS[type(value)]
    if isinstance(value, Params):
        return "params"
    if isinstance(value, enum.Enum):
        return "enum"
    if isinstance(value, type):
        return "type"
    if type(value).__name__ == "DType" and hasattr(type(value), "as_numpy_dtype"):
        return "dtype"
    return "func" if callable(value) and hasattr(value, "__qualname__") else ""


def write_value(value: Any) -> str:
    """Returns the text of a value; nested Params only as their template.

    Raises:
      ValueError: The value has no text form.
    """
    value = as_plain(value)
    kind = kind_of(value)
    if kind in ("None", "bool", "int", "float", "str"):
        return repr(value)
    if kind == "list":
        return f"[{', '.join(map(write_value, value))}]"
    if kind == "tuple":
        comma = "," if len(value) == 1 else ""
        return f"({', '.join(map(write_value, value))}{comma})"
    if kind == "dict":
        items = (f"{write_value(k)}: {write_value(v)}" for k, v in value.items())
        return f"{{{', '.join(items)}}}"
    if kind == "params":
        return template_text(value)
    if kind == "dtype":
        name = value.name
        return name if PLAIN_DTYPE.fullmatch(name) else f"dtype/{name}"
    if kind:
        return f"{kind}/{symbol_text(value)}"
    raise ValueError(
        "it must be None, a bool, a number, a string, an enum member, a dtype, a "
        "class, a function, Params, or a list, tuple or dict of them; "
        f"got {type(value).__name__} {value!r}"
    )
