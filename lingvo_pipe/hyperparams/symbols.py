"""Classes, functions and enum members as `module/Name`, and back."""

from __future__ import annotations

import enum
import importlib
import re
from typing import Any

from lingvo_pipe.hyperparams.suggest import did_you_mean

_DOTTED = re.compile(r"\w+(\.\w+)*")


def symbol_text(symbol: Any) -> str:
    """Returns `module/Name` of something that its module holds under its own name.

    Raises:
      ValueError: Its module does not, so the text could not be read back.
    """
    owner = type(symbol) if isinstance(symbol, enum.Enum) else symbol
    module = getattr(owner, "__module__", None)
    name = getattr(owner, "__qualname__", None)
    if isinstance(symbol, enum.Enum):
        name = f"{name}.{symbol.name}"
    try:
        if module and name and find_symbol(f"{module}/{name}") == symbol:
            return f"{module}/{name}"
    except ValueError:
        pass
    raise ValueError(
        f"{symbol!r} must be reachable by name in its module to have a text form; "
        f"{module}.{name} is not it. Define it at the module's top level"
    )


def find_symbol(text: str) -> Any:
    """Returns what `module/Name` names; imports the module.

    Raises:
      ValueError: There is no such module, or no such name in it.
    """
    module_name, _, qualname = text.partition("/")
    if not (_DOTTED.fullmatch(module_name) and _DOTTED.fullmatch(qualname)):
        raise ValueError(f"a name in a module must be `module/Name`; got {text!r}")
    try:
        found = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if not f"{module_name}.".startswith(f"{error.name}."):
            raise  # The module exists; something that it imports does not.
        raise ValueError(f"no module {module_name!r} can be imported") from error
    for name in qualname.split("."):
        if not hasattr(found, name):
            raise ValueError(
                f"module {module_name!r} has no {qualname!r}."
                f"{did_you_mean(name, dir(found))}"
            )
        found = getattr(found, name)
    return found
