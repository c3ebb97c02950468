"""Regular expressions on paths that choose which variables are trained or frozen.

A frozen variable keeps its value and has no slots in the optimizer. Moving averages of
a layer with frozen weights, such as batch norm's, still move.
"""

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
    """Adds the params that freeze variables to a task's `train` params."""
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
    """Returns the variables, by path, that the params `p` do not freeze.

    Raises:
        ValueError: if a pattern matches no path, or no variable is left to train.
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
    """Returns the paths in which a regular expression has a match.

    `param` is the path of the param that holds the pattern. If `at_start`, a match
    counts only at the start of a path.

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
