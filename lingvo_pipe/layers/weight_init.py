"""How a variable gets its first value.

A rule is a small `Params` made by one of `WeightInit`'s methods, so that it can be
written in a model's parameters, printed and overridden like any other value. The value
itself is a pure function of (rule, shape, dtype, seed), drawn from stateless random
numbers on the host: it depends neither on the device that will hold the variable nor
on the order in which variables are made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import tensorflow as tf

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.hyperparams.suggest import did_you_mean


def _rule(method: str, scale: float, seed: int | None) -> Params:
    p = Params()
    p.Define("method", method, "The rule's name: one of WeightInit's methods.")
    p.Define("scale", scale, "Factor of the rule; its meaning is the rule's own.")
    p.Define("seed", seed, "Seed of this variable alone; None: from its path.")
    return p


class WeightInit:
    """The rules. `fan_in` and `fan_out` count the inputs and outputs of a unit.

    For a weight of shape `[..., I, O]` they are `I` and `O` times the product of the
    leading dimensions (a convolution's window).
    """

    @staticmethod
    def Constant(scale: float = 0.0) -> Params:
        """Every element is `scale`."""
        return _rule("constant", scale, None)

    @staticmethod
    def Gaussian(scale: float = 1.0, seed: int | None = None) -> Params:
        """Normal, standard deviation `scale`."""
        return _rule("gaussian", scale, seed)

    @staticmethod
    def TruncatedGaussian(scale: float = 1.0, seed: int | None = None) -> Params:
        """Normal, standard deviation `scale`, redrawn beyond two of them."""
        return _rule("truncated_gaussian", scale, seed)

    @staticmethod
    def Uniform(scale: float = 1.0, seed: int | None = None) -> Params:
        """Uniform in [-scale, scale)."""
        return _rule("uniform", scale, seed)

    @staticmethod
    def UniformPositive(scale: float = 1.0, seed: int | None = None) -> Params:
        """Uniform in [0, scale)."""
        return _rule("uniform_positive", scale, seed)

    @staticmethod
    def Xavier(scale: float = 1.0, seed: int | None = None) -> Params:
        """Uniform in ±scale·√(6 / (fan_in + fan_out)) (Glorot and Bengio 2010)."""
        return _rule("xavier", scale, seed)

    @staticmethod
    def GaussianSqrtFanIn(scale: float = 1.0, seed: int | None = None) -> Params:
        """Normal, standard deviation scale / √fan_in."""
        return _rule("gaussian_sqrt_fanin", scale, seed)

    @staticmethod
    def GaussianSqrtFanOut(scale: float = 1.0, seed: int | None = None) -> Params:
        """Normal, standard deviation scale / √fan_out."""
        return _rule("gaussian_sqrt_fanout", scale, seed)

    @staticmethod
    def TruncatedGaussianSqrtFanIn(
        scale: float = 1.0, seed: int | None = None
    ) -> Params:
        """Truncated normal, standard deviation scale / √fan_in before truncation."""
        return _rule("truncated_gaussian_sqrt_fanin", scale, seed)

    @staticmethod
    def TruncatedGaussianSqrtFanOut(
        scale: float = 1.0, seed: int | None = None
    ) -> Params:
        """Truncated normal, standard deviation scale / √fan_out before truncation."""
        return _rule("truncated_gaussian_sqrt_fanout", scale, seed)

    @staticmethod
    def UniformSqrtFanIn(scale: float = 1.0, seed: int | None = None) -> Params:
        """Uniform in ±scale / √fan_in."""
        return _rule("uniform_sqrt_fanin", scale, seed)

    @staticmethod
    def UniformUnitScaling(scale: float = 1.0, seed: int | None = None) -> Params:
        """Uniform in ±scale·√(3 / fan_in): keeps the variance of the inputs."""
        return _rule("uniform_unit_scaling", scale, seed)


def fans(shape: Sequence[int]) -> tuple[int, int]:
    """Returns (fan_in, fan_out) of a weight of `shape` `[..., I, O]`.

    A vector's length counts as both, and a scalar as 1 of each.
    """
    if not shape:
        return 1, 1
    if len(shape) == 1:
        return shape[0], shape[0]
    window = math.prod(shape[:-2])
    return window * shape[-2], window * shape[-1]


def _normal(shape: Sequence[int], seed: tf.Tensor) -> tf.Tensor:
    return tf.random.stateless_normal(shape, seed)


def _truncated(shape: Sequence[int], seed: tf.Tensor) -> tf.Tensor:
    return tf.random.stateless_truncated_normal(shape, seed)


def _symmetric(shape: Sequence[int], seed: tf.Tensor) -> tf.Tensor:
    return tf.random.stateless_uniform(shape, seed, minval=-1.0, maxval=1.0)


def _positive(shape: Sequence[int], seed: tf.Tensor) -> tf.Tensor:
    return tf.random.stateless_uniform(shape, seed)


def _unit(fan_in: int, fan_out: int) -> float:
    return 1.0


def _by_fan_in(fan_in: int, fan_out: int) -> float:
    return fan_in**-0.5


def _by_fan_out(fan_in: int, fan_out: int) -> float:
    return fan_out**-0.5


# method -> (draw with unit scale, factor from the fans)
_DRAWS: dict[str, tuple[Callable, Callable[[int, int], float]]] = {
    "constant": (lambda shape, seed: tf.ones(shape), _unit),
    "gaussian": (_normal, _unit),
    "truncated_gaussian": (_truncated, _unit),
    "uniform": (_symmetric, _unit),
    "uniform_positive": (_positive, _unit),
    "xavier": (_symmetric, lambda i, o: (6.0 / (i + o)) ** 0.5),
    "gaussian_sqrt_fanin": (_normal, _by_fan_in),
    "gaussian_sqrt_fanout": (_normal, _by_fan_out),
    "truncated_gaussian_sqrt_fanin": (_truncated, _by_fan_in),
    "truncated_gaussian_sqrt_fanout": (_truncated, _by_fan_out),
    "uniform_sqrt_fanin": (_symmetric, _by_fan_in),
    "uniform_unit_scaling": (_symmetric, lambda i, o: (3.0 / i) ** 0.5),
}


def initial_value(
    init: Params,
    shape: Sequence[int],
    dtype: tf.DType,
    seed: tuple[int, int],
    unit_fans: tuple[int, int] | None = None,
) -> tf.Tensor:
    """Draws a variable's first value on the host.

    Args:
        init: one of `WeightInit`'s rules.
        shape: the variable's shape.
        dtype: its dtype; the numbers are drawn in float32 and cast.
        seed: two integers, ignored where the rule names a seed of its own.
        unit_fans: number of inputs and of outputs of a unit; None: `fans(shape)`.

    Raises:
        ValueError: if the rule's method is unknown.
    """
    if init.method not in _DRAWS:
        raise ValueError(
            f"A weight's init method must be one of {sorted(_DRAWS)}; "
            f"got {init.method!r}.{did_you_mean(init.method, _DRAWS)} "
            "Use the methods of WeightInit."
        )
    draw, factor = _DRAWS[init.method]
    if init.seed is not None:
        seed = (init.seed, 0)
    with tf.device("/CPU:0"):
        value = draw(list(shape), tf.constant(seed, tf.int64))
        scale = init.scale * factor(*(unit_fans or fans(shape)))
        return tf.cast(value * scale, dtype)
