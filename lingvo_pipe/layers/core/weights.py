"""Weights of a layer: declaration, initial value and creation of one variable.

The initial value is a pure function of (rule, shape, dtype, seed), drawn on the host.
It does not depend on the variable's device or on the order of creation.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams import InstantiableParams, Params
from lingvo_pipe.layers.core import random_streams
from lingvo_pipe.layers.core.checks import check_choice, check_shape
from lingvo_pipe.layers.core.slicing import Piece, cut_whole, whole_shape

# Collections of Lingvo that mean something here; see `WeightParams`.
SKIP_LP_REGULARIZATION = "__lingvo_skip_lp_regularization"
_MOVING_VARS = "moving_vars"

_NORMAL = tf.random.stateless_normal
_TRUNCATED = tf.random.stateless_truncated_normal
_UNIFORM = tf.random.stateless_uniform
_SYMMETRIC = functools.partial(_UNIFORM, minval=-1.0, maxval=1.0)

# The factor of a standard draw, from scale s, fan_in i, fan_out o, first dimension d.
_Factor: TypeAlias = Callable[[float, int, int, int], float]
_FACTORS: dict[str, _Factor] = {
    "": lambda s, i, o, d: s,
    "_sqrt_dim": lambda s, i, o, d: s * d**-0.5,
    "_sqrt_fanin": lambda s, i, o, d: s * i**-0.5,
    "_sqrt_fanout": lambda s, i, o, d: s * o**-0.5,
    "_sqrt_fanavg": lambda s, i, o, d: s * (2.0 / (i + o)) ** 0.5,
}
_UNIFORM_FACTORS: dict[str, _Factor] = {
    "xavier": lambda s, i, o, d: s * (6.0 / (i + o)) ** 0.5,
    "geo_mean_xavier": lambda s, i, o, d: s * (9.0 / (i * o)) ** 0.25,
    "uniform_unit_scaling": lambda s, i, o, d: s * (3.0 / i) ** 0.5,
    "uniform_unit_scaling_fan_avg": lambda s, i, o, d: (6.0 * s / (i + o)) ** 0.5,
    "kaiming_uniform_fanin_relu": lambda s, i, o, d: s * (6.0 / i) ** 0.5,
    "kaiming_uniform_fanin_leakyrelu": lambda s, i, o, d: (6 / (1 + s**2) / i) ** 0.5,
}
# The draw and its factor, by method.
_DRAWS: dict[str, tuple[Callable, _Factor]] = {
    "constant": (lambda shape, seed: tf.ones(shape), _FACTORS[""]),
    "uniform_positive": (_UNIFORM, _FACTORS[""]),
    **{name: (_SYMMETRIC, factor) for name, factor in _UNIFORM_FACTORS.items()},
    **{
        name + suffix: (draw, factor)
        for name, draw in (
            ("gaussian", _NORMAL),
            ("truncated_gaussian", _TRUNCATED),
            ("uniform", _SYMMETRIC),
        )
        for suffix, factor in _FACTORS.items()
    },
}


def _rule(method: str, default_scale: float = 1.0) -> staticmethod[..., Params]:
    def make(scale: float = default_scale, seed: int | None = None) -> Params:
        p = Params()
        p.Define("method", method, "Name of the rule: one of WeightInit's methods.")
        p.Define("scale", scale, "Factor; its meaning depends on the rule.")
        p.Define("seed", seed, "Seed of only this variable. If None, from its path.")
        return p

    return staticmethod(make)


class WeightInit:
    """Rules for initial values, each with a `scale` and, optionally, a `seed`.

        Constant                     every element is `scale`
        Gaussian                     normal, standard deviation `scale`
        TruncatedGaussian            Gaussian, redrawn beyond two standard deviations
        Uniform                      uniform in [-scale, scale)
        UniformPositive              uniform in [0, scale)
        <any>SqrtDim, SqrtFanIn ...  scale / √n instead of scale, for n the first
                                     dimension, fan_in, fan_out or the mean of both
        Xavier                       uniform in ±scale·√(6 / (fan_in + fan_out))
                                     (Glorot and Bengio 2010)
        XavierWithFixupParams        Xavier with scale·depth^(-1 / (2·layers))
                                     (Fixup: Zhang et al. 2019)
        GeoMeanXavier                uniform in ±scale·√(3 / √(fan_in·fan_out))
        UniformUnitScaling           uniform in ±scale·√(3 / fan_in)
        UniformUnitScalingFanAvg     uniform in ±√(6·scale / (fan_in + fan_out))
        KaimingUniformFanInRelu      uniform in ±scale·√(6 / fan_in) (He et al. 2015)
        KaimingUniformFanInLeakyRelu uniform in ±√(6 / (1 + scale²) / fan_in)

    `fan_in` and `fan_out` count the inputs and outputs of a unit. For a weight of shape
    `[..., I, O]` they are `I` and `O` times the product of the leading dimensions (a
    convolution's window). Lingvo has the same names and formulas.
    """

    Constant = _rule("constant")
    Gaussian = _rule("gaussian")
    GaussianSqrtDim = _rule("gaussian_sqrt_dim")
    GaussianSqrtFanIn = _rule("gaussian_sqrt_fanin")
    GaussianSqrtFanOut = _rule("gaussian_sqrt_fanout")
    GaussianSqrtFanAvg = _rule("gaussian_sqrt_fanavg")
    TruncatedGaussian = _rule("truncated_gaussian")
    TruncatedGaussianSqrtDim = _rule("truncated_gaussian_sqrt_dim")
    TruncatedGaussianSqrtFanIn = _rule("truncated_gaussian_sqrt_fanin")
    TruncatedGaussianSqrtFanOut = _rule("truncated_gaussian_sqrt_fanout")
    Uniform = _rule("uniform")
    UniformSqrtDim = _rule("uniform_sqrt_dim")
    UniformSqrtFanIn = _rule("uniform_sqrt_fanin")
    UniformPositive = _rule("uniform_positive")
    Xavier = _rule("xavier")
    GeoMeanXavier = _rule("geo_mean_xavier")
    UniformUnitScaling = _rule("uniform_unit_scaling")
    UniformUnitScalingFanAvg = _rule("uniform_unit_scaling_fan_avg")
    KaimingUniformFanInRelu = _rule("kaiming_uniform_fanin_relu")
    KaimingUniformFanInLeakyRelu = _rule("kaiming_uniform_fanin_leakyrelu", 5.0**0.5)

    @staticmethod
    def XavierWithFixupParams(
        scale: float = 1.0,
        depth: float = 1.0,
        layers_per_residual_block: float = 1.0,
        seed: int | None = None,
    ) -> Params:
        """Returns Xavier for a layer in one of `depth` residual blocks."""
        factor = depth ** (-1.0 / (2.0 * layers_per_residual_block))
        return WeightInit.Xavier(scale * factor, seed)


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
    """Draws a variable's initial value on the host in float32, and casts it to `dtype`.

    If the rule `init` has a seed, that replaces `seed`.

    Raises:
        ValueError: if the rule is unknown.
    """
    check_choice(init.method, sorted(_DRAWS), "WeightInit's method")
    draw, factor = _DRAWS[init.method]
    if init.seed is not None:
        seed = (init.seed, 0)
    with tf.device("/CPU:0"):
        value = draw(list(shape), tf.constant(seed, tf.int64))
        first = shape[0] if shape else 1
        scale = factor(init.scale, *(unit_fans or fans(shape)), first)
        return tf.cast(value * scale, dtype)


def WeightParams(
    shape: Sequence[int],
    init: Params | None = None,
    dtype: tf.DType | None = None,
    collections: Sequence[str] | None = None,
    trainable: bool = True,
    fans: tuple[int, int] | None = None,
) -> Params:
    """Declares a variable for `BaseLayer.CreateVariable`.

    Args:
        shape: all dimensions, each at least 1.
        init: one of `WeightInit`'s rules. If None, the layer's `params_init`.
        dtype: if None, the layer's `dtype`.
        collections: Lingvo's names of groups of variables. `SKIP_LP_REGULARIZATION`
            leaves the variable out of `task.train.l2_regularizer_weight`, and
            `moving_vars` out of training. Others, such as `<layer>_vars`, do nothing.
        trainable: False for state without gradients, such as moving averages.
        fans: inputs and outputs of a unit, for the rules that depend on them. If None,
            derived from the shape `[..., I, O]`.

    Raises:
        ValueError: if `collections` is not a list of names.
    """
    if collections is not None and not isinstance(collections, (list, tuple)):
        raise UserValueError(
            path="WeightParams.collections",
            expected="a list of names",
            got=collections,
            hint="State without gradients needs trainable=False.",
        )
    p = Params()
    p.Define("shape", list(shape), "All dimensions.")
    p.Define("init", init, "One of WeightInit's rules.")
    p.Define("dtype", dtype, "If None, the layer's dtype.")
    p.Define("collections", list(collections or ()), "Groups it belongs to.")
    p.Define("trainable", trainable, "True if the learner updates it.")
    p.Define("fans", fans, "Inputs and outputs of a unit. If None, from the shape.")
    return p


def create_variable(
    weight: Params,
    layer_params: InstantiableParams,
    options: dict[str, Any],
    piece: Piece | None,
    path: str,
) -> tf.Variable:
    """Creates the variable that `WeightParams` declared, on the current device.

    `options` are arguments of tf.Variable. The variable is trainable if both `options`
    and `weight` allow it. A `piece`'s initial value is cut from the whole weight's.

    Raises:
        ValueError: if the declaration, the shape or the initializer is not valid.
    """
    _check(weight, "shape", path, "WeightParams", "Write WeightParams(shape=[...]).")
    rule = weight.init if weight.init is not None else layer_params.params_init
    hint = "Set params_init, or init of WeightParams, such as WeightInit.Xavier()."
    _check(rule, "method", path, "one of WeightInit's rules", hint)
    check_shape(weight.shape, path)
    shape, dtype = list(weight.shape), weight.dtype or layer_params.dtype
    pair = random_streams.seed_pair(layer_params.random_seed, path)
    may_train = weight.trainable and _MOVING_VARS not in weight.collections

    def draw() -> tf.Tensor:
        if piece is None:
            return initial_value(rule, shape, dtype, pair, weight.fans)
        whole = whole_shape(shape, piece)
        value = initial_value(rule, whole, dtype, pair, weight.fans)
        with tf.device("/CPU:0"):
            return cut_whole(value, piece, shape[piece.axis])

    return tf.Variable(
        draw,
        name=path,
        shape=shape,
        dtype=dtype,
        **{**options, "trainable": options["trainable"] and may_train},
    )


def _check(value: Any, field: str, path: str, expected: str, hint: str) -> None:
    if not isinstance(value, Params) or field not in value:
        raise UserValueError(path=path, expected=expected, got=value, hint=hint)
