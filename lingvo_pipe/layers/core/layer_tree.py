"""Walks over a tree of layers: its children, its accumulators and its variables.

A child is a layer, or a nest of layers: lists and NestedMaps, at any depth.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

from lingvo_pipe.nested_map import NestedMap, get_step, parse_key


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
    node, where = root, f"{root.path}.GetDescendant({path!r})"
    for step in parse_key(path) if path else []:
        is_nest = isinstance(node, (list, dict))
        node = get_step(node if is_nest else node.children, step, where)
    return node
