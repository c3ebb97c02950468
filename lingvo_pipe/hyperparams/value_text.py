"""Converts values of params to text, and text to values, also as people type it."""

import contextlib
import dataclasses
import enum
import importlib
import math
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.hyperparams import templates
from lingvo_pipe.hyperparams.fields import Fields
from lingvo_pipe.hyperparams.frozen_values import FrozenDict, FrozenList, as_plain
from lingvo_pipe.hyperparams.literals import RAW_QUOTED, Literal, read_plain
from lingvo_pipe.hyperparams.traversal import holds_params, record_fields

# Names of dtypes that are not ordinary words: these are read as dtypes.
_PLAIN_DTYPE = re.compile(r"(bfloat|float|u?int|complex)\d+")
_LINGVO_NONE = "NoneType"
_NONES = ("None", _LINGVO_NONE)
_COMPLEX = re.compile(r"\dj|[+-](inf|nan)j")
_PREFIX = re.compile(r"(?:type|func|enum|dtype)(?=/)|params(?=[/(])")

_KINDS: dict[type, str] = {
    kind: kind.__name__ for kind in (bool, int, float, complex, str, list, tuple, dict)
}
_KINDS |= {type(None): "None", FrozenList: "list", FrozenDict: "dict"}


def kind_of(value: Any) -> str:
    """Returns the name of a value's type in texts, or "" if it has no text form."""
    value = as_plain(value)
    if type(value) in _KINDS:
        return _KINDS[type(value)]
    for kind, name in ((Fields, "params"), (enum.Enum, "enum"), (type, "type")):
        if isinstance(value, kind):
            return name
    if type(value).__name__ == "DType" and hasattr(type(value), "as_numpy_dtype"):
        return "dtype"
    return "func" if callable(value) and hasattr(value, "__qualname__") else ""


# ---- To text.


def write_value(value: Any, like: Any = None) -> str:
    """Returns the text of a value. Nested Params are written as templates.

    A dataclass or named tuple has a text only if `like`, the value that a reader will
    replace, is of the same class.

    Raises:
        ValueError: if the value has no text form.
    """
    value = as_plain(value)
    fields = record_fields(value) if type(value) is type(like) else None
    # No path leads to Params in a dataclass.
    if fields is not None and (isinstance(value, tuple) or not holds_params(value)):
        return write_value(fields)
    kind = kind_of(value)
    if kind == "complex":
        return f"{value.real!r}{value.imag:+}j"
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
        return templates.template_text(value)
    if kind == "dtype":
        name = value.name
        return name if _PLAIN_DTYPE.fullmatch(name) else f"dtype/{name}"
    if kind:
        return f"{kind}/{templates.symbol_text(value)}"
    raise UserValueError(
        expected="a value with a text form: None, a bool, a number, a string, an enum "
        "member, a dtype, a class, a function, Params, a list, tuple or dict of them, "
        "or a dataclass or named tuple of them in place of a default of its class",
        got=value,
    )


def shown_value(value: Any) -> str:
    """Returns the text of a value, or its repr if it has no text form."""
    try:
        return write_value(value)
    except ValueError:
        return repr(value)


# ---- From text.


def read_value(text: str, like: Any = None, kind: str = "") -> Any:
    """Reads a value of the type `kind`, or else of `like`'s type, or else of any type.

    The texts `None` and `NoneType` are always None.

    Raises:
        ValueError: if the text is of another type.
    """
    text = text.strip()
    kind = kind or kind_of(like)
    if text in _NONES:
        return None
    fields = record_fields(like)
    if fields is not None and not kind:
        return _read_record(text, like, fields)
    if kind not in _READERS:
        return infer_value(text)
    if kind == "enum" and like is not None:
        return _read_enum(text, type(like))
    return _READERS[kind](text)


def infer_value(text: str) -> Any:
    """Reads a value as the type that it looks like. A bare word is a string."""
    if text.startswith(("[", "(", "{")):
        return Literal(text, infer_value).parse()
    if text in _NONES:
        return None
    if text.lower() in ("true", "false"):
        return _read_bool(text)
    prefixed = _PREFIX.match(text)
    if prefixed:
        return _READERS[prefixed[0]](text)
    if _PLAIN_DTYPE.fullmatch(text):
        return _read_dtype(text)
    for number in (int, float, complex):
        with contextlib.suppress(ValueError):
            if number is not complex or _COMPLEX.search(text):
                return number(text)
    if not text:
        nothing = Words("nothing")
        raise UserValueError(expected="a value, or '' for an empty string", got=nothing)
    return _read_str(text)


def _read_bool(text: str) -> bool:
    words = {"true": True, "1": True, "false": False, "0": False}
    if text.lower() not in words:
        raise UserValueError(expected="a bool: true, false, 1 or 0", got=text)
    return words[text.lower()]


def _read_int(text: str) -> int:
    with contextlib.suppress(ValueError):
        return int(text, 10)
    with contextlib.suppress(ValueError):
        # 1e3 is an int too, 1.5 is not; float(text) bounds the exponent.
        if math.isfinite(float(text)) and Fraction(text).denominator == 1:
            return int(Fraction(text))
    raise UserValueError(expected="an int, such as 1000 or 1e3", got=text)


def _number_reader(kind: Callable, expected: str) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return kind(text)
        except ValueError:
            raise UserValueError(expected=expected, got=text) from None

    return read


def _read_record(text: str, like: Any, fields: Mapping[str, Any]) -> Any:
    """Reads fields from a dict's text. Lingvo quotes dtypes, classes and None."""
    values = _read_dict(text)
    for name, value in values.items():
        if name not in fields:
            expected = f"fields of {type(like).__name__}: {', '.join(fields)}"
            raise UserValueError(expected=expected, got=name, names=fields)
        may_be_quoted = kind_of(fields[name]) in ("dtype", "type", "func")
        if isinstance(value, str) and (may_be_quoted or value == _LINGVO_NONE):
            values[name] = read_value(value, fields[name])
    is_tuple = isinstance(like, tuple)
    return like._replace(**values) if is_tuple else dataclasses.replace(like, **values)


def _read_str(text: str) -> str:
    if RAW_QUOTED.fullmatch(text):
        return read_plain(text.replace("\n", "\\n"))
    if text.startswith(("'", '"')):
        expected = "a string that ends with the quote it starts with"
        raise UserValueError(expected=expected, got=text)
    return text


def _read_dtype(text: str) -> Any:
    name = text.removeprefix("dtype/")
    try:
        return importlib.import_module("tensorflow").as_dtype(name)
    except TypeError:
        expected = "the name of a TensorFlow dtype"
        raise UserValueError(expected=expected, got=text) from None


def _read_symbol(text: str, any_function: bool = False) -> Any:
    """Reads a class or function. `any_function` allows Lingvo's `type/` before both."""
    prefix, _, symbol = text.partition("/")
    if prefix not in ("type", "func"):
        expected = "a class `type/module/Name` or a function `func/module/name`"
        raise UserValueError(expected=expected, got=text)
    value = templates.find_symbol(symbol)
    is_function = any_function and kind_of(value) == "func"
    return value if is_function else _checked_kind(value, prefix)


def _read_enum(text: str, cls: type[enum.Enum] | None = None) -> enum.Enum:
    if text.startswith("enum/"):
        return _checked_kind(templates.find_symbol(text.removeprefix("enum/")), "enum")
    if cls is None:
        raise UserValueError(expected="an enum `enum/module/Class.MEMBER`", got=text)
    text, members = text.removeprefix(f"{cls.__name__}."), cls.__members__
    if text not in members:
        expected = f"{cls.__name__}, one of {', '.join(members)}"
        raise UserValueError(expected=expected, got=text, names=members)
    return cls[text]


def _checked_kind(value: Any, kind: str) -> Any:
    if kind_of(value) != kind:
        raise UserValueError(expected=f"an object of the type {kind}", got=value)
    return value


def _read_dict(text: str) -> Any:
    value = infer_value(text)
    if not isinstance(value, dict):
        raise UserValueError(expected="a dict {'a': b}", got=text)
    return value


def _read_items(text: str) -> Any:
    value = infer_value(text)
    if not isinstance(value, (list, tuple)):
        raise UserValueError(expected="a list [a, b] or a tuple (a, b)", got=text)
    return value


_READERS: dict[str, Callable[[str], Any]] = {
    "bool": _read_bool,
    "int": _read_int,
    "float": _number_reader(float, "a float: a number, inf or nan"),
    "complex": _number_reader(
        lambda text: complex(text.replace(" ", "")), "a complex number such as 1.5-2j"
    ),
    "str": _read_str,
    "list": lambda text: list(_read_items(text)),
    "tuple": lambda text: tuple(_read_items(text)),
    "dict": _read_dict,
    "dtype": _read_dtype,
    "type": _read_symbol,
    "func": lambda text: _read_symbol(text, any_function=True),
    "enum": _read_enum,
    "params": templates.build_template,
}

# The names that `path (type) : value` accepts; None means the type it looks like.
KINDS = ("None", *_READERS)
