"""Walking a layer's children, which are layers, lists of layers or maps of layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lingvo_pipe.hyperparams.suggest import did_you_mean
from lingvo_pipe.nested_map import NestedMap


def map_layers(function: Callable, layers: Any, *values: Any) -> Any:
    """Maps over a layer, or a list or NestedMap of layers, and values beside them."""
    if isinstance(layers, list):
        return [function(c, *(v[i] for v in values)) for i, c in enumerate(layers)]
    if isinstance(layers, NestedMap):
        return NestedMap(
            {k: function(c, *(v[k] for v in values)) for k, c in layers.items()}
        )
    return function(layers, *values)


def find_descendant(root: Any, path: str) -> Any:
    """The layer at a path such as `encoder.layers[1].attention` below `root`."""
    found = root
    for part in path.replace("[", ".[").split(".") if path else []:
        choices: Any = found if isinstance(found, (list, dict)) else found.children
        try:
            found = choices[int(part[1:-1]) if part.startswith("[") else part]
        except (KeyError, IndexError, TypeError, ValueError):
            near = did_you_mean(part, choices if isinstance(choices, dict) else ())
            fault = f"there is no {part!r}.{near}"
            raise _not_found(root, path, fault, choices) from None
    if isinstance(found, (list, dict)):
        fault = f"a {'list' if isinstance(found, list) else 'map'} of layers is left."
        raise _not_found(root, path, fault, found)
    return found


def _not_found(root: Any, path: str, fault: str, choices: Any) -> KeyError:
    if isinstance(choices, list):
        known = f"[0] to [{len(choices) - 1}]" if choices else "none"
    else:
        known = str(sorted(choices))
    return KeyError(
        f"GetDescendant needs the path of a layer below {root.path!r}; in {path!r} "
        f"{fault} Choose among {known}."
    )
