"""Walks over a tree of layers: its children, its accumulators and its variables.

A child is a layer, or a nest of layers: lists and NestedMaps, at any depth.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.errors import (
    UserError,
    UserIndexError,
    UserKeyError,
    UserTypeError,
)
from lingvo_pipe.nested_map import NestedMap


def map_layers(function: Callable, layers: Any, *values: Any) -> Any:
    """Applies a function to each layer of a nest, and returns the results as a nest.

    The function also takes the values at the layer's place in the nests `values`.
    """
    if not isinstance(layers, (list, NestedMap)):
        return function(layers, *values)
    is_map = isinstance(layers, NestedMap)
    keys: Iterable[Any] = layers if is_map else range(len(layers))
    mapped = {k: map_layers(function, layers[k], *(v[k] for v in values)) for k in keys}
    return NestedMap(mapped) if is_map else [*mapped.values()]


def accumulator_paths(layer: Any) -> Iterator[str]:
    """Yields the paths of all accumulators of a layer and of the layers below it."""
    for descendant in layer.Descendants():
        for name in descendant.own_accumulators:
            yield f"{descendant.path}/{name}"


def unregularized_paths(layer: Any) -> set[str]:
    """Returns the paths of variables that some layer excludes from regularization."""
    skipped = {
        v.ref()
        for x in layer.Descendants()
        for name, v in x._variables.items()
        if x.params.skip_lp_regularization or name in x._unregularized
    }
    return {path for path, v in layer.VariablePaths().items() if v.ref() in skipped}


def variables_by_path(
    entries: Iterable[tuple[str, tf.Variable, bool]],
) -> dict[str, tf.Variable]:
    """Returns each variable by one path: its owner's or, if not listed, its first.

    An entry is a path, a variable, and True if the variable belongs to another path.
    """
    listed = list(entries)
    paths: dict[Any, str] = {}
    for path, variable, _ in sorted(listed, key=lambda entry: entry[2]):
        paths.setdefault(variable.ref(), path)
    return {path: v for path, v, _ in listed if paths[v.ref()] == path}


def find_descendant(root: Any, path: str) -> Any:
    """Returns the layer or nest at a path. See `BaseLayer.GetDescendant`."""
    node = root
    for step in path.replace("[", ".[").split(".") if path else []:
        choices: Any = node if isinstance(node, (list, dict)) else node.children
        is_index = step.startswith("[")
        try:
            node = choices[int(step[1:-1]) if is_index else step]
        except (KeyError, IndexError, TypeError, ValueError):
            kind: type[UserError] = UserKeyError
            if is_index:
                kind = UserIndexError if isinstance(choices, list) else UserTypeError
            raise _not_found(kind, root, path, step, choices) from None
    return node


def _not_found(
    kind: type[UserError], root: Any, path: str, got: str, choices: Any
) -> UserError:
    names = sorted(choices) if isinstance(choices, dict) else []
    is_indexed = isinstance(choices, list) and choices
    listed = f"[0] to [{len(choices) - 1}]" if is_indexed else names
    return kind(
        path=f"{root.path}.GetDescendant({path!r})",
        expected=f"one of {listed}" if listed else "the end of the path",
        got=got,
        names=names,
    )
