"""Which variables are trained and which are frozen, by patterns in their paths.

A frozen variable keeps its value and has no slots in the optimizer. The moving averages
of a layer with frozen weights, such as batch norm's, still move.
"""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.training.variable_patterns import paths_with


def define_freezing_params(p: Params) -> None:
    """Defines which variables are trained, among the params of a task's training."""
    p.Define(
        "bprop_variable_filter",
        None,
        "Regular expression: only variables in whose path it is found are trained. "
        "None: all.",
    )
    p.Define(
        "bprop_variable_exclusion",
        None,
        "Regular expression: variables in whose path it is found are frozen. None: "
        "none.",
    )


def without_frozen(
    p: Params, variables: Mapping[str, tf.Variable]
) -> dict[str, tf.Variable]:
    """The variables that are trained.

    Args:
        p: as of `define_freezing_params`.
        variables: those that layers declare as trainable, by path.

    Raises:
        ValueError: if a pattern chooses no variable, or nothing is left to train.
    """
    paths, kept = list(variables), set(variables)
    if p.bprop_variable_filter is not None:
        kept &= set(paths_with(p.bprop_variable_filter, paths, "bprop_variable_filter"))
    if p.bprop_variable_exclusion is not None:
        kept -= set(
            paths_with(p.bprop_variable_exclusion, paths, "bprop_variable_exclusion")
        )
    if not kept:
        raise ValueError(
            "At least 1 variable must be trained; bprop_variable_filter "
            f"{p.bprop_variable_filter!r} and bprop_variable_exclusion "
            f"{p.bprop_variable_exclusion!r} leave none of {len(paths)}. Freeze fewer."
        )
    return {path: variable for path, variable in variables.items() if path in kept}
