"""Texts for classes, functions, enum members and nested Params.

A class or function is `module/Name`. Nested Params are `params/module/Class` or
`params(name, ...)`: new Params at their defaults, whose values further entries set.
Other texts, and names that a module does not hold, raise ValueError.
"""

import contextlib
import enum
import importlib
import inspect
import re
from typing import Any

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams.fields import Fields

_WORD = r"[^\s/,:()\[\]{}]+"
_TEMPLATE = re.compile(rf"params(?:/(None|{_WORD}/{_WORD}))?(?:\(([^()]*)\))?")
_DOTTED = re.compile(r"\w+(\.\w+)*")


def template_text(params: Any) -> str:
    """Returns the text of Params, such as `params/module/Class`.

    The text lists the names of the params unless the class defines the same names.
    """
    if type(params) is Fields._plain:
        return f"params({', '.join(params.GetKeys())})"
    if type(params) is not Fields._instantiable:
        expected = "Params or InstantiableParams, which have a text form"
        raise UserValueError(expected=expected, got=type(params))
    cls = params.cls
    text = "params/" + ("None" if cls is None else symbol_text(cls))
    if set(fresh_params(cls).GetKeys()) == set(params.GetKeys()):
        return text
    return f"{text}({', '.join(name for name in params.GetKeys() if name != 'cls')})"


def build_template(text: str) -> Any:
    """Returns new Params, at their defaults, for a text from `template_text`.

    If the text lists names, the Params have only these names, besides `cls`. A listed
    name without a default gets the value None.

    Raises:
        ValueError: if the text has another form, or its class is not found.
    """
    match = _TEMPLATE.fullmatch(text)
    if match is None or text == "params":
        expected = "`params/module/Class`, `params(name, ...)` or None"
        hint = "Set params of nested Params by their paths."
        raise UserValueError(expected=expected, got=text, hint=hint)
    symbol, names = match.groups()
    if symbol is None:
        params = Fields._plain()
    else:
        params = fresh_params(None if symbol == "None" else find_symbol(symbol))
    if names is None:
        return params
    listed = [name.strip() for name in names.split(",") if name.strip()]
    params.Delete(*(n for n in params.GetKeys() if n not in ["cls", *listed]))
    for name in listed:
        if name not in params:
            params.Define(name, None, "Read from text.")
    return params


def fresh_params(cls: Any) -> Any:
    """Returns `cls.Params()` if these configure `cls`, else InstantiableParams(cls)."""
    make: Any = getattr(cls, "Params", None)
    try:
        inspect.signature(make).bind()
    except TypeError:  # None, or a method that needs arguments.
        return Fields._instantiable(cls)
    params = make()
    knows_class = type(params) is Fields._instantiable and params.cls is cls
    return params if knows_class else Fields._instantiable(cls)


def symbol_text(symbol: Any) -> str:
    """Returns `module/Name` of a class, function or enum member."""
    owner = type(symbol) if isinstance(symbol, enum.Enum) else symbol
    module = getattr(owner, "__module__", None)
    name = getattr(owner, "__qualname__", None)
    if isinstance(symbol, enum.Enum):
        name = f"{name}.{symbol.name}"
    with contextlib.suppress(ValueError):
        if module and name and find_symbol(f"{module}/{name}") == symbol:
            return f"{module}/{name}"
    expected = "an object that its module has by its name, for its text form"
    hint = f"{module}.{name} is another object or none: define it at the top level."
    raise UserValueError(expected=expected, got=symbol, hint=hint)


def find_symbol(text: str) -> Any:
    """Returns the object that the text `module/Name` names. Imports the module."""
    module_name, _, qualname = text.partition("/")
    if not (_DOTTED.fullmatch(module_name) and _DOTTED.fullmatch(qualname)):
        raise UserValueError(expected="`module/Name`", got=text)
    try:
        symbol = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if not f"{module_name}.".startswith(f"{error.name}."):
            raise  # The module exists, but one of its own imports does not.
        expected = "a module that can be imported"
        raise UserValueError(expected=expected, got=module_name) from error
    for name in qualname.split("."):
        if not hasattr(symbol, name):
            expected = f"a name in module {module_name}"
            raise UserValueError(expected=expected, got=name, names=dir(symbol))
        symbol = getattr(symbol, name)
    return symbol
