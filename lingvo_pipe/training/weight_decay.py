"""Weight decay as a loss: λ/2·Σw², whose gradient λ·w is added to the weight's own.

As AmoebaNet is trained (tf/tpu, amoeba_net: slim's `l2_regularizer`, on kernels, not on
biases and not on batch norm's scale and offset). Being part of the loss it comes before
gradients are clipped; the loss that is reported is without it. Weight decay that is
decoupled from the loss is an argument, `weight_decay`, of Keras's optimizers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.training.variable_patterns import paths_with


def define_weight_decay_params(p: Params) -> None:
    """Defines weight decay among the params of a task's training."""
    p.Define(
        "l2_regularizer_weight",
        None,
        "λ of the loss λ/2·Σw² over all trained variables. None: no such loss.",
    )
    p.Define(
        "l2_regularizer_scales",
        [],
        "[(regular expression, scale)]: λ is multiplied by the scale of the first "
        "expression found in the variable's path; where none is, by 1. For example "
        "[('/(b|beta|gamma)$', 0.0)].",
    )


def l2_weights(p: Params, paths: Sequence[str]) -> dict[str, float]:
    """λ of each variable that has weight decay, by path.

    Args:
        p: as of `define_weight_decay_params`.
        paths: of all trained variables.

    Raises:
        ValueError: if the weight or a scale is negative or no number, an expression is
            found in no path, or scales are given without a weight.
    """
    weight, scales = p.l2_regularizer_weight, _checked_scales(p.l2_regularizer_scales)
    if weight is None:
        if scales:
            raise ValueError(
                "l2_regularizer_scales are those of l2_regularizer_weight, which is "
                f"None; got {scales}. Set the weight, or leave out the scales."
            )
        return {}
    _check_not_negative("l2_regularizer_weight", weight)
    chosen = [
        (set(paths_with(pattern, paths, "l2_regularizer_scales")), scale)
        for pattern, scale in scales
    ]
    of_path = {
        path: weight * next((scale for found, scale in chosen if path in found), 1.0)
        for path in paths
    }
    return {path: product for path, product in of_path.items() if product}


def add_l2_gradients(
    gradients: Mapping[str, tf.Tensor],
    variables: Mapping[str, tf.Variable],
    weights: Mapping[str, float],
) -> dict[str, tf.Tensor]:
    """Gradients with those of weight decay added, each on its variable's device.

    Args:
        gradients: by path.
        variables: by path.
        weights: as from `l2_weights`.
    """
    added = dict(gradients)
    for path, weight in weights.items():
        variable = variables[path]
        with tf.device(variable.device):
            added[path] = gradients[path] + weight * variable.read_value()
    return added


def _checked_scales(scales: Any) -> list[tuple[str, float]]:
    is_list = isinstance(scales, (list, tuple))
    if not is_list or not all(
        isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in scales
    ):
        raise ValueError(
            "l2_regularizer_scales must be a list of pairs (regular expression, "
            f"scale); got {scales!r}."
        )
    for _, scale in scales:
        _check_not_negative("A scale in l2_regularizer_scales", scale)
    return [(pattern, scale) for pattern, scale in scales]


def _check_not_negative(what: str, number: Any) -> None:
    if not isinstance(number, (int, float)) or not 0 <= number < math.inf:
        raise ValueError(
            f"{what} must be a number of at least 0; got {number!r}. With 0 weights do "
            "not decay."
        )
