"""Regular expressions that choose variables by path, and freeze them.

A frozen variable keeps its value and has no slots in the optimizer. Moving averages of
a layer with frozen weights, such as batch norm's, still move.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.core.near_names import did_you_mean
from lingvo_pipe.hyperparams import Params
from lingvo_pipe.layers.core.slicing import whole_path

_PATH = "task.train"


def define_freezing_params(p: Params) -> None:
    """Defines the freezing params in a task's `train` params."""
    p.Define(
        "bprop_variable_filter",
        None,
        "Regular expression: only variables whose path contains a match are trained. "
        "If None, all are.",
    )
    p.Define(
        "bprop_variable_exclusion",
        None,
        "Regular expression: variables whose path contains a match are frozen. If "
        "None, none are.",
    )


def without_frozen(
    p: Params, variables: Mapping[str, tf.Variable]
) -> dict[str, tf.Variable]:
    """Returns the variables that are trained, of all trainable ones by path.

    Raises:
        ValueError: if a pattern chooses no variable, or none is left to train.
    """
    paths, trained = list(variables), set(variables)
    if (pattern := p.bprop_variable_filter) is not None:
        trained &= set(paths_with(pattern, paths, f"{_PATH}.bprop_variable_filter"))
    if (pattern := p.bprop_variable_exclusion) is not None:
        trained -= set(paths_with(pattern, paths, f"{_PATH}.bprop_variable_exclusion"))
    if not trained:
        raise UserValueError(
            path=_PATH,
            expected=f"bprop_variable_filter {p.bprop_variable_filter!r} and "
            f"bprop_variable_exclusion {p.bprop_variable_exclusion!r} to leave some of "
            f"{len(paths)} variables to train",
        )
    return {path: variable for path, variable in variables.items() if path in trained}


def paths_with(
    pattern: Any, paths: Sequence[str], param: str, at_start: bool = False
) -> list[str]:
    """Returns the paths that contain a match of the regular expression in a param.

    `param` is the param's path. If `at_start`, only matches at the start of a path
    count.

    Raises:
        ValueError: if the expression is invalid, or matches no path.
    """
    try:
        compiled = re.compile(pattern)
    except (re.error, TypeError) as error:
        raise UserValueError(
            path=param,
            expected="a regular expression",
            got=Words(f"{pattern!r} ({error})"),
        ) from error
    matches = compiled.match if at_start else compiled.search
    chosen = [path for path in paths if matches(whole_path(path))]
    if not chosen:
        names = {name for path in paths for name in path.split("/")}
        words = [word for word in re.findall(r"\w{2,}", pattern) if word not in names]
        near = "".join(did_you_mean(word, names) for word in words)
        raise UserValueError(
            path=param,
            expected="a match in at least 1 variable's path",
            got=Words(f"{pattern!r}, which matches none of {len(paths)}"),
            hint=f"Paths are such as {list(paths[:3])}.{near}",
        )
    return chosen
