"""Weights of a layer: declaration, initial value and creation of one variable.

A rule for the initial value is a small `Params` from `WeightInit`, so that a model's
params can contain, print and override it like any other value. The value is a pure
function of (rule, shape, dtype, seed), drawn from stateless random numbers on the host:
it does not depend on the variable's device or on the order of creation.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams import InstantiableParams, Params
from lingvo_pipe.layers.core import random_streams
from lingvo_pipe.layers.core.checks import check_choice, check_shape

_MAX_SHOWN = 80


_NORMAL = tf.random.stateless_normal
_TRUNCATED = tf.random.stateless_truncated_normal
_UNIFORM = tf.random.stateless_uniform
_SYMMETRIC = functools.partial(_UNIFORM, minval=-1.0, maxval=1.0)

# Method -> (draw with unit scale, factor from fan_in and fan_out).
_DRAWS: dict[str, tuple[Callable, Callable[[int, int], float]]] = {}


def _rule(
    method: str,
    draw: Callable,
    factor: Callable[[int, int], float] = lambda i, o: 1.0,
    default_scale: float = 1.0,
) -> staticmethod[..., Params]:
    _DRAWS[method] = draw, factor

    def make(scale: float = default_scale, seed: int | None = None) -> Params:
        p = Params()
        p.Define("method", method, "Name of the rule: one of WeightInit's methods.")
        p.Define("scale", scale, "Factor; its meaning depends on the rule.")
        p.Define("seed", seed, "Seed of only this variable. If None, from its path.")
        return p

    return staticmethod(make)


class WeightInit:
    """Rules for initial values; each takes a `scale` and, optionally, a `seed`.

        Constant                     every element is `scale`
        Gaussian                     normal, standard deviation `scale`
        TruncatedGaussian            Gaussian, redrawn beyond two standard deviations
        Uniform                      uniform in [-scale, scale)
        UniformPositive              uniform in [0, scale)
        Xavier                       uniform in ±scale·√(6 / (fan_in + fan_out))
                                     (Glorot and Bengio 2010)
        GaussianSqrtFanIn            Gaussian of scale / √fan_in
        GaussianSqrtFanOut           Gaussian of scale / √fan_out
        TruncatedGaussianSqrtFanIn   TruncatedGaussian of scale / √fan_in
        TruncatedGaussianSqrtFanOut  TruncatedGaussian of scale / √fan_out
        UniformSqrtFanIn             uniform in ±scale / √fan_in
        UniformUnitScaling           uniform in ±scale·√(3 / fan_in), which keeps the
                                     variance of the inputs

    `fan_in` and `fan_out` count the inputs and outputs of a unit. For a weight of shape
    `[..., I, O]` they are `I` and `O` times the product of the leading dimensions (a
    convolution's window).
    """

    Constant = _rule("constant", lambda shape, seed: tf.ones(shape), default_scale=0.0)
    Gaussian = _rule("gaussian", _NORMAL)
    TruncatedGaussian = _rule("truncated_gaussian", _TRUNCATED)
    Uniform = _rule("uniform", _SYMMETRIC)
    UniformPositive = _rule("uniform_positive", _UNIFORM)
    Xavier = _rule("xavier", _SYMMETRIC, lambda i, o: (6.0 / (i + o)) ** 0.5)
    GaussianSqrtFanIn = _rule("gaussian_sqrt_fanin", _NORMAL, lambda i, o: i**-0.5)
    GaussianSqrtFanOut = _rule("gaussian_sqrt_fanout", _NORMAL, lambda i, o: o**-0.5)
    TruncatedGaussianSqrtFanIn = _rule(
        "truncated_gaussian_sqrt_fanin", _TRUNCATED, lambda i, o: i**-0.5
    )
    TruncatedGaussianSqrtFanOut = _rule(
        "truncated_gaussian_sqrt_fanout", _TRUNCATED, lambda i, o: o**-0.5
    )
    UniformSqrtFanIn = _rule("uniform_sqrt_fanin", _SYMMETRIC, lambda i, o: i**-0.5)
    UniformUnitScaling = _rule(
        "uniform_unit_scaling", _SYMMETRIC, lambda i, o: (3.0 / i) ** 0.5
    )


def fans(shape: Sequence[int]) -> tuple[int, int]:
    """Returns (fan_in, fan_out) of a weight of `shape` `[..., I, O]`.

    A vector's length counts as both, and a scalar as 1 of each.
    """
    if len(shape) < 2:
        return math.prod(shape), math.prod(shape)
    window = math.prod(shape[:-2])
    return window * shape[-2], window * shape[-1]


def initial_value(
    init: Params,
    shape: Sequence[int],
    dtype: tf.DType,
    seed: tuple[int, int],
    unit_fans: tuple[int, int] | None = None,
) -> tf.Tensor:
    """Draws a variable's initial value on the host, in float32, cast to `dtype`.

    The seed is ignored if the rule, `init`, has a seed of its own. `unit_fans` are
    fan_in and fan_out of a unit; if None, `fans(shape)`. An unknown rule raises
    ValueError.
    """
    check_choice(init.method, sorted(_DRAWS), "WeightInit's method")
    draw, factor = _DRAWS[init.method]
    if init.seed is not None:
        seed = (init.seed, 0)
    with tf.device("/CPU:0"):
        value = draw(list(shape), tf.constant(seed, tf.int64))
        scale = init.scale * factor(*(unit_fans or fans(shape)))
        return tf.cast(value * scale, dtype)


def WeightParams(
    shape: Sequence[int],
    init: Params | None = None,
    dtype: tf.DType | None = None,
    trainable: bool = True,
    fans: tuple[int, int] | None = None,
) -> Params:
    """Declares a variable for `BaseLayer.CreateVariable`.

    Args:
        shape: all dimensions, each at least 1.
        init: one of `WeightInit`'s rules; if None, the layer's `params_init`.
        dtype: if None, the layer's `dtype`.
        trainable: False for state without gradients, such as moving averages.
        fans: inputs and outputs of a unit, for the rules that depend on them; if None,
            derived from the shape `[..., I, O]`.
    """
    p = Params()
    p.Define("shape", list(shape), "All dimensions.")
    p.Define("init", init, "One of WeightInit's rules.")
    p.Define("dtype", dtype, "If None, the layer's dtype.")
    p.Define("trainable", trainable, "True if the learner updates it.")
    p.Define("fans", fans, "Inputs and outputs of a unit. If None, from the shape.")
    return p


def create_variable(
    weight: Params, layer_params: InstantiableParams, path: str
) -> tf.Variable:
    """Creates the variable that `WeightParams` declared, on the current device.

    The path and the layer's seed determine the initial value. A declaration, shape or
    initializer that is not valid raises ValueError.
    """
    _check(weight, "shape", path, "WeightParams", "Write WeightParams(shape=[...]).")
    rule = weight.init if weight.init is not None else layer_params.params_init
    hint = "Set params_init, or init of WeightParams, such as WeightInit.Xavier()."
    _check(rule, "method", path, "one of WeightInit's rules", hint)
    check_shape(weight.shape, path)
    shape, dtype = list(weight.shape), weight.dtype or layer_params.dtype
    pair = random_streams.seed_pair(layer_params.random_seed, path)
    return tf.Variable(
        functools.partial(initial_value, rule, shape, dtype, pair, weight.fans),
        trainable=weight.trainable,
        name=path,
        shape=shape,
        dtype=dtype,
    )


def _check(value: Any, field: str, path: str, expected: str, hint: str) -> None:
    """Raises ValueError unless `value` is Params with the given field."""
    if not isinstance(value, Params) or field not in value:
        raise UserValueError(
            f"{path}: expected {expected}, got a {type(value).__name__}, "
            f"{str(value)[:_MAX_SHOWN]}. {hint}"
        )
