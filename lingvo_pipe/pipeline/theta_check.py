"""Checks that theta has the structure and shapes of the variables."""

from __future__ import annotations

from typing import Any

from lingvo_pipe import tree

_MOST_TOLD = 3


def check_theta(theta: Any, variables: Any, where: str) -> None:
    """Checks theta.

    Args:
        theta: what a layer was given.
        variables: the layer's `vars`.
        where: the layer's path, for errors.

    Raises:
        ValueError: saying the first places in which they differ.
    """
    wanted, given = dict(tree.leaves(variables)), dict(tree.leaves(theta))
    differences = [f"{path} is missing" for path in wanted if path not in given]
    differences += [f"{path} is unknown" for path in given if path not in wanted]
    if not differences and not tree.same_structure(theta, variables):
        differences = ["an empty part is missing, or a list is a tuple"]
    if not differences:
        differences = [
            f"{path} {_of_shape(given[path])}, not {tuple(variable.shape)}"
            for path, variable in wanted.items()
            if getattr(given[path], "shape", None) != variable.shape
        ]
    if differences:
        more = len(differences) - _MOST_TOLD
        rest = f"; and {more} more" if more > 0 else ""
        raise ValueError(
            "theta must have the structure of vars, and their shapes; in that given to "
            f"{where} {'; '.join(differences[:_MOST_TOLD])}{rest}. Take it from "
            "layer.theta, or map layer.vars to it."
        )


def _of_shape(x: Any) -> str:
    return f"has {tuple(x.shape)}" if hasattr(x, "shape") else f"is {x!r}"
