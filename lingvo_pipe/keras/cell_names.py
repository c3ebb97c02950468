"""Names of cells and of their variables, for paths such as `conv2d_1/kernel`.

A cell is named for its first layer with a kernel. Its variables are named by their
paths below their layers, without numbers, so that alike cells have alike names.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from lingvo_pipe.keras.calls import Call
from lingvo_pipe.nested_map import NestedMap


def cell_name(calls: Sequence[Call], taken: Collection[str]) -> str:
    """Returns a new name for a cell of these calls."""
    with_kernel = [call for call in calls if call.has_kernel]
    name = (with_kernel or calls)[0].operation.name
    name = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_") or "cell"
    return _new(name, taken, "_call")  # Keras itself adds _1 for another layer.


def variable_names(calls: Sequence[Call]) -> list[str]:
    """Returns names of the variables of a cell's calls, each variable once."""
    found: dict[int, str] = {}
    for call in calls:
        for v in call.variables:
            if id(v) not in found:
                key = _key(v.path, call.operation.name)
                found[id(v)] = _new(key, found.values(), "_")
    return list(found.values())


def _key(path: str, layer: str) -> str:
    """Returns a variable's path below its layer, as a key of a NestedMap."""
    parts = path.split("/")
    below = parts[parts.index(layer) + 1 :] if layer in parts else parts[-1:]
    key = "_".join(re.sub(r"_\d+$", "", part) for part in below)
    key = re.sub(r"\W", "_", key)
    return key if key.isidentifier() and not hasattr(NestedMap, key) else f"v_{key}"


def _new(name: str, taken: Collection[str], separator: str) -> str:
    number, new = 0, name
    while new in taken:
        number += 1
        new = f"{name}{separator}{number}"
    return new
