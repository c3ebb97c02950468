"""The declaration of one variable, and its creation."""

from __future__ import annotations

import functools
import numbers
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams, Params
from lingvo_pipe.layers import random_streams
from lingvo_pipe.layers.tied_variables import created_or_tied
from lingvo_pipe.layers.weight_init import initial_value

_MAX_SHOWN = 80


def WeightParams(
    shape: Sequence[int],
    init: Params | None = None,
    dtype: tf.DType | None = None,
    trainable: bool = True,
    fans: tuple[int, int] | None = None,
) -> Params:
    """Declares a variable for `BaseLayer.CreateVariable`.

    Args:
        shape: every dimension, known and at least 1.
        init: one of `WeightInit`'s rules; None: the layer's `params_init`.
        dtype: None: the layer's `dtype`.
        trainable: False for state that no gradient touches, such as moving averages.
        fans: number of inputs and of outputs of a unit, for the rules that depend on
            them; None: what the shape `[..., I, O]` says.
    """
    p = Params()
    p.Define("shape", list(shape), "Every dimension.")
    p.Define("init", init, "One of WeightInit's rules.")
    p.Define("dtype", dtype, "None: the layer's dtype.")
    p.Define("trainable", trainable, "Whether the learner updates it.")
    p.Define("fans", fans, "Inputs and outputs of a unit; None: as the shape says.")
    return p


def create_variable(
    weight: Params, layer_params: InstantiableParams, path: str
) -> tf.Variable:
    """Creates on the current device what `WeightParams` declared.

    Args:
        weight: the declaration.
        layer_params: of the layer, with what it inherits filled in.
        path: of the variable; together with the seed it decides on the first value.

    Raises:
        ValueError: if this is no declaration, or the shape or the rule of the first
            value is none.
    """
    _check_declaration(weight, path)
    rule = weight.init if weight.init is not None else layer_params.params_init
    _check_rule(rule, path)
    check_shape(weight.shape, path)
    shape, dtype = list(weight.shape), weight.dtype or layer_params.dtype
    seed = layer_params.random_seed

    def create(path: str) -> tf.Variable:
        first_value = functools.partial(
            initial_value,
            rule,
            shape,
            dtype,
            random_streams.seed_pair(seed, path),
            weight.fans,
        )
        return tf.Variable(
            first_value,
            trainable=weight.trainable,
            name=path,
            shape=shape,
            dtype=dtype,
        )

    return created_or_tied(path, create)


def _check_declaration(weight: Any, path: str) -> None:
    if not isinstance(weight, Params) or "shape" not in weight:
        raise ValueError(
            f"CreateVariable must be given WeightParams; {path} was to be created from "
            f"{_shown(weight)}. Write WeightParams(shape=[...])."
        )


def _check_rule(rule: Any, path: str) -> None:
    if not isinstance(rule, Params) or "method" not in rule:
        raise ValueError(
            "params_init, and the init of WeightParams, must be one of WeightInit's "
            f"rules; that of {path} is {_shown(rule)}. Write WeightInit.Xavier(), for "
            "instance."
        )


def _shown(value: Any) -> str:
    return f"a {type(value).__name__}, {str(value)[:_MAX_SHOWN]}"


def check_shape(shape: Sequence[Any], where: str) -> None:
    """Raises ValueError unless every dimension is a positive integer."""
    if not all(isinstance(n, numbers.Integral) and int(n) >= 1 for n in shape):
        raise ValueError(
            "Every dimension of a variable or accumulator must be an integer of at "
            f"least 1; {where} has shape {list(shape)}. Check the layer's params."
        )
