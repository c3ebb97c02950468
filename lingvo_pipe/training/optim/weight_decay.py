"""Weight decay as a loss: λ/2·Σw², whose gradient λ·w is added to the weight's own.

AmoebaNet uses it (tf/tpu, amoeba_net: slim's `l2_regularizer`) on kernels, not on
biases, nor on batch norm's scale and offset. As part of the loss, it is added before
clipping. The reported loss excludes it. For weight decay that is decoupled from the
loss, use the argument `weight_decay` of Keras's optimizers.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.checks import is_number, is_sequence
from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams import Params
from lingvo_pipe.hyperparams.param_rules import Rule, check_params, optional
from lingvo_pipe.training.optim.frozen_variables import paths_with

_SCALES = "l2_regularizer_scales"


def _is_weight(value: Any) -> bool:
    return is_number(value) and 0 <= value < math.inf


def _are_scales(value: Any) -> bool:
    is_list = is_sequence(value) and all(is_sequence(pair, 2) for pair in value)
    return is_list and all(_is_weight(scale) for _, scale in value)


_RULES = {
    "l2_regularizer_weight": optional(Rule(_is_weight, "a number of at least 0")),
    _SCALES: Rule(
        _are_scales,
        "a list of pairs (regular expression, scale)",
        "A scale of 0 is for weights that do not decay.",
    ),
}


def define_weight_decay_params(p: Params) -> None:
    """Adds the params of weight decay to a task's `train` params."""
    p.Define(
        "l2_regularizer_weight",
        None,
        "λ of the loss λ/2·Σw² over all trained variables. If None, no weight decay.",
    )
    p.Define(
        _SCALES,
        [],
        "[(regular expression, scale)]: λ is multiplied by the scale of the first "
        "expression found in the variable's path, if any. For example "
        "[('/(b|beta|gamma)$', 0.0)].",
    )


def l2_weights(
    p: Params, paths: Sequence[str], without: Collection[str] = ()
) -> dict[str, float]:
    """Returns λ of each trained variable that has weight decay, by path.

    `paths` has the paths of all trained variables. Those in `without` do not decay, as
    their layers declare.

    Raises:
        ValueError: if a param is invalid, an expression matches no path, or scales are
            given for variables that do not decay.
    """
    check_params(p, _RULES, "task.train")
    weight, scales = p.l2_regularizer_weight, p.l2_regularizer_scales
    param = f"task.train.{_SCALES}"
    if weight is None:
        if scales:
            expected = "none, since l2_regularizer_weight is None"
            raise UserValueError(path=param, expected=expected, got=scales)
        return {}
    by_path = dict.fromkeys(paths, weight)
    for pattern, scale in reversed(scales):  # The first expression counts.
        matched = paths_with(pattern, paths, param)
        if scale and set(matched) <= set(without):
            raise UserValueError(
                path=param,
                expected=f"0 as the scale of {pattern!r}, since no variable that it "
                f"matches, such as {matched[0]}, has weight decay by its layer",
                got=scale,
                hint="Leave the pair out.",
            )
        by_path |= dict.fromkeys(matched, weight * scale)
    return {path: x for path, x in by_path.items() if x and path not in without}


def add_l2_gradients(
    gradients: Mapping[str, tf.Tensor],
    variables: Mapping[str, tf.Variable],
    weights: Mapping[str, float],
) -> dict[str, tf.Tensor]:
    """Returns each gradient plus λ·w, by path, where `weights` has λ by path."""
    added = dict(gradients)
    for path, weight in weights.items():
        variable = variables[path]
        with tf.device(variable.device):
            added[path] = gradients[path] + weight * variable.read_value()
    return added
