"""Nested Params as a value's text: `params/module/Class` or `params(name, ...)`.

The text stands for new Params at their defaults; further entries set their values.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

from lingvo_pipe.hyperparams.instantiable_params import InstantiableParams
from lingvo_pipe.hyperparams.params import Params
from lingvo_pipe.hyperparams.symbols import find_symbol, symbol_text

_WORD = r"[^\s/,:()\[\]{}]+"
_TEMPLATE = re.compile(rf"params(?:/(None|{_WORD}/{_WORD}))?(?:\(([^()]*)\))?")


def template_text(params: Params) -> str:
    """Returns the class and, unless they are what it defines, the names.

    Raises:
      ValueError: The class cannot be found by its name.
    """
    names = [name for name in params.GetKeys() if name != "cls"]
    if type(params) is Params:
        return f"params({', '.join(params.GetKeys())})"
    if type(params) is not InstantiableParams:
        raise ValueError(
            "only Params and InstantiableParams have a text form; "
            f"got {type(params).__name__}"
        )
    cls = params.cls
    text = "params/" + ("None" if cls is None else symbol_text(cls))
    if set(fresh_params(cls).GetKeys()) == set(params.GetKeys()):
        return text
    return f"{text}({', '.join(names)})"


def build_template(text: str) -> Params:
    """Returns new Params from template_text's text.

    Raises:
      ValueError: It is none, its class cannot be found, or a name is malformed.
    """
    match = _TEMPLATE.fullmatch(text)
    if match is None or text == "params":
        raise ValueError(
            "nested Params must be `params/module/Class`, `params(name, ...)` or None; "
            f"got {text!r}. Their own params are set by their paths"
        )
    symbol, names = match.groups()
    if symbol is None:
        params = Params()
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


def fresh_params(cls: Any) -> InstantiableParams:
    """Returns `cls.Params()` where that is how its Params are made."""
    make = getattr(cls, "Params", None)
    if make is not None and _callable_without_arguments(make):
        made = make()
        if type(made) is InstantiableParams and made.cls is cls:
            return made
    return InstantiableParams(cls)


def _callable_without_arguments(make: Any) -> bool:
    try:
        inspect.signature(make).bind()
    except TypeError:
        return False
    return True
