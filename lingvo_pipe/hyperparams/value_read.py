"""Text to values: what write_value writes, and what people type."""

from __future__ import annotations

import ast
import enum
import importlib
import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from lingvo_pipe.hyperparams.literals import QUOTED, Literal
from lingvo_pipe.hyperparams.suggest import did_you_mean
from lingvo_pipe.hyperparams.symbols import find_symbol
from lingvo_pipe.hyperparams.templates import build_template
from lingvo_pipe.hyperparams.value_write import PLAIN_DTYPE, kind_of

_PREFIX = re.compile(r"(?:type|func|enum|dtype)(?=/)|params(?=[/(])")


def read_value(text: str, like: Any = None, kind: str = "") -> Any:
    """Reads a value.

    Args:
      text: Its text.
      like: The value it replaces, whose type it must have; None takes any.
      kind: The name of its type, which overrules `like`'s.

    Returns:
      The value. The text `None` is always None.

    Raises:
      ValueError: The text is no value of that type.
    """
    text = text.strip()
    kind = kind or kind_of(like)
    if text == "None":
        return None
    if kind not in _READERS:
        return infer_value(text)
    if kind == "enum" and like is not None:
        return _read_enum(text, type(like))
    return _READERS[kind](text)


def infer_value(text: str) -> Any:
    """Reads a value as the type that it looks like; a bare word is a string."""
    if text.startswith(("[", "(", "{")):
        return Literal(text, infer_value).parse()
    if text == "None":
        return None
    if text.lower() in ("true", "false"):
        return _read_bool(text)
    prefixed = _PREFIX.match(text)
    if prefixed:
        return _READERS[prefixed[0]](text)
    if PLAIN_DTYPE.fullmatch(text):
        return _read_dtype(text)
    return _number_or_string(text)


def _number_or_string(text: str) -> int | float | str:
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            pass
    if not text:
        raise ValueError("there must be a value; write '' for an empty string")
    return _read_str(text)


def _read_bool(text: str) -> bool:
    words = {"true": True, "1": True, "false": False, "0": False}
    if text.lower() not in words:
        raise ValueError(f"a bool must be true, false, 1 or 0; got {text!r}")
    return words[text.lower()]


def _read_int(text: str) -> int:
    try:
        return int(text, 10)
    except ValueError:
        pass
    try:  # 1e3 is an int too, 1.5 is not; float(text) bounds the exponent.
        if math.isfinite(float(text)) and Fraction(text).denominator == 1:
            return int(Fraction(text))
    except ValueError:
        pass
    raise ValueError(f"an int must be a whole number such as 1000 or 1e3; got {text!r}")


def _read_float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(
            f"a float must be a number, inf or nan; got {text!r}"
        ) from None


def _read_str(text: str) -> str:
    if QUOTED.fullmatch(text):
        return ast.literal_eval(text)
    if text.startswith(("'", '"')):
        raise ValueError(f"a string must end with the quote it starts with; got {text}")
    return text


def _read_dtype(text: str) -> Any:
    name = text.removeprefix("dtype/")
    try:
        return importlib.import_module("tensorflow").as_dtype(name)
    except TypeError:
        raise ValueError(
            f"a dtype must be the name of a TensorFlow dtype; got {text!r}"
        ) from None


def _read_symbol(text: str) -> Any:
    prefix, _, symbol = text.partition("/")
    if prefix not in ("type", "func"):
        raise ValueError(
            "a class must be `type/module/Name`, a function `func/module/name`; "
            f"got {text!r}"
        )
    return _checked_kind(find_symbol(symbol), prefix, text)


def _read_enum(text: str, cls: type[enum.Enum] | None = None) -> enum.Enum:
    if text.startswith("enum/"):
        return _checked_kind(find_symbol(text.removeprefix("enum/")), "enum", text)
    if cls is None:
        raise ValueError(f"an enum must be `enum/module/Class.MEMBER`; got {text!r}")
    if text not in cls.__members__:
        raise ValueError(
            f"a {cls.__name__} must be one of {', '.join(cls.__members__)}; "
            f"got {text!r}.{did_you_mean(text, cls.__members__)}"
        )
    return cls[text]


def _read_list(text: str) -> list:
    value = infer_value(text)
    if isinstance(value, (list, tuple)):
        return list(value)
    raise ValueError(f"a list or tuple must be [a, b] or (a, b); got {text!r}")


def _read_dict(text: str) -> dict:
    value = infer_value(text)
    if isinstance(value, dict):
        return value
    raise ValueError(f"a dict must be {{'a': b}}; got {text!r}")


_READERS: dict[str, Callable[[str], Any]] = {
    "bool": _read_bool,
    "int": _read_int,
    "float": _read_float,
    "str": _read_str,
    "list": _read_list,
    "tuple": lambda text: tuple(_read_list(text)),
    "dict": _read_dict,
    "dtype": _read_dtype,
    "type": _read_symbol,
    "func": _read_symbol,
    "enum": _read_enum,
    "params": build_template,
}

# Every name that `path (type) : value` takes; None means: what it looks like.
KINDS = ("None", *_READERS)


def _checked_kind(value: Any, kind: str, text: str) -> Any:
    if kind_of(value) != kind:
        raise ValueError(f"{text!r} must be of type {kind}; it is {value!r}")
    return value
