"""What layers and their parts may be called.

A layer's name is part of its variables' paths and of a TensorFlow name scope; a part's
name is a key of `vars`, `theta` and `children`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from lingvo_pipe.nested_map import NestedMap

_LAYER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def check_layer_name(name: Any, layer: Any, parent: Any) -> None:
    """Raises ValueError unless `layer`, below `parent`, may be called `name`."""
    if isinstance(name, str) and _LAYER_NAME.fullmatch(name):
        return
    below = f" below {parent.path!r}" if parent is not None else ""
    raise ValueError(
        "A layer must have a name of letters, digits, '_', '-' and '.', a letter or "
        f"digit first and without '/'; {type(layer).__name__}{below} has {name!r}. "
        "Set it: params.Set(name='...')."
    )


def check_sibling_name(name: str, siblings: Iterable[Any], parent: Any) -> None:
    """Raises ValueError if one of `siblings` is called `name` already."""
    if any(name == sibling.params.name for sibling in siblings):
        raise ValueError(
            "Siblings must have different names, for the paths of their variables; "
            f"{parent.path} has two called {name!r}. Set params.name."
        )


def check_key(name: Any, layer: Any) -> None:
    """Raises ValueError unless `name` can be a key of a NestedMap."""
    try:
        NestedMap.CheckKey(name)
    except ValueError as error:
        raise ValueError(
            f"A layer's parts are the items of NestedMaps; {layer.path} was asked for "
            f"{name!r}. {error}"
        ) from None


def check_part_name(name: Any, taken: Iterable[str], layer: Any) -> None:
    """Raises ValueError unless `name` is free for a child, variable or accumulator.

    Args:
        name: of the part.
        taken: names of the parts so far.
        layer: whose part it is to be.
    """
    check_key(name, layer)
    if name in taken or hasattr(type(layer), name):
        raise ValueError(
            "A layer's parts must have names of their own, unlike its methods'; "
            f"{layer.path} has {name!r} already. Choose another name."
        )
