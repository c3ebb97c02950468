"""Initial values depend on rule, shape, path and seed, and on nothing else."""

from __future__ import annotations

import hashlib
import inspect
import math
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams, Params
from lingvo_pipe.layers.convolution import DepthwiseConv2DLayer
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.weights import (
    WeightInit,
    WeightParams,
    fans,
    initial_value,
)
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.pipeline.devices.stage_devices import initialize_devices
from tests.support.errors import fails

SHAPE = [3, 2, 40, 90]
FAN_IN, FAN_OUT, FAN_AVG = 240, 540, 390
# The standard deviation of a standard normal cut off at two.
TRUNCATED = 0.87962566103423978
# Rule -> (standard deviation, largest value) for scale 1 and SHAPE.
SPREADS: dict[str, tuple[float, float]] = {
    "Constant": (0.0, 1.0),
    "Gaussian": (1.0, math.inf),
    "TruncatedGaussian": (TRUNCATED, 2.0),
    "Uniform": (3**-0.5, 1.0),
    "UniformPositive": (12**-0.5, 1.0),
    "Xavier": ((2 / (FAN_IN + FAN_OUT)) ** 0.5, (6 / (FAN_IN + FAN_OUT)) ** 0.5),
    "GaussianSqrtFanIn": (FAN_IN**-0.5, math.inf),
    "GaussianSqrtFanOut": (FAN_OUT**-0.5, math.inf),
    "TruncatedGaussianSqrtFanIn": (TRUNCATED * FAN_IN**-0.5, 2 * FAN_IN**-0.5),
    "TruncatedGaussianSqrtFanOut": (TRUNCATED * FAN_OUT**-0.5, 2 * FAN_OUT**-0.5),
    "UniformSqrtFanIn": ((3 * FAN_IN) ** -0.5, FAN_IN**-0.5),
    "UniformUnitScaling": (FAN_IN**-0.5, (3 / FAN_IN) ** 0.5),
    "UniformUnitScalingFanAvg": (FAN_AVG**-0.5, (3 / FAN_AVG) ** 0.5),
    "KaimingUniformFanInRelu": ((2 / FAN_IN) ** 0.5, (6 / FAN_IN) ** 0.5),
    "KaimingUniformFanInLeakyRelu": (FAN_IN**-0.5, (3 / FAN_IN) ** 0.5),
    "GeoMeanXavier": ((FAN_IN * FAN_OUT) ** -0.25, (9 / (FAN_IN * FAN_OUT)) ** 0.25),
    "XavierWithFixupParams": (FAN_AVG**-0.5, (3 / FAN_AVG) ** 0.5),
    "GaussianSqrtDim": (SHAPE[0] ** -0.5, math.inf),
    "GaussianSqrtFanAvg": (FAN_AVG**-0.5, math.inf),
    "UniformSqrtDim": ((3 * SHAPE[0]) ** -0.5, SHAPE[0] ** -0.5),
    "TruncatedGaussianSqrtDim": (TRUNCATED * SHAPE[0] ** -0.5, 2 * SHAPE[0] ** -0.5),
}
# Standard deviation for scale 2.5, in units of that for scale 1.
SCALED = {
    "UniformUnitScalingFanAvg": 2.5**0.5,
    "KaimingUniformFanInLeakyRelu": (2 / (1 + 2.5**2)) ** 0.5,
}


def draw(rule: Params, shape: list[int] = SHAPE, dtype: Any = tf.float32) -> np.ndarray:
    return initial_value(rule, shape, dtype, (0, 1)).numpy()


def test_every_rule_is_tested() -> None:
    rules = {name for name, _ in inspect.getmembers(WeightInit, inspect.isfunction)}
    assert rules == set(SPREADS)


@pytest.mark.parametrize("rule", SPREADS)
def test_values_spread_as_the_rule_says(rule: str) -> None:
    deviation, largest = SPREADS[rule]
    values = draw(getattr(WeightInit, rule)(1.0))
    assert list(values.shape) == SHAPE
    assert values.std() == pytest.approx(deviation, rel=0.02)
    assert np.abs(values).max() <= largest * (1 + 1e-6)
    assert np.abs(values).max() >= 0.99 * min(largest, 3 * deviation or 1.0)
    mean = {"Constant": 1.0, "UniformPositive": 0.5}.get(rule, 0.0)
    assert abs(values.mean() - mean) <= 5 * deviation / math.sqrt(values.size)
    scaled = draw(getattr(WeightInit, rule)(2.5))
    np.testing.assert_allclose(scaled, SCALED.get(rule, 2.5) * values, rtol=1e-6)


def test_fixup_divides_by_a_root_of_the_depth() -> None:
    """The two layers of each of 16 blocks have 1 / 16^(1/4) of Xavier's values."""
    rule = WeightInit.XavierWithFixupParams(3.0, depth=16, layers_per_residual_block=2)
    np.testing.assert_array_equal(draw(rule), draw(WeightInit.Xavier(1.5)))


def test_defaults_are_lingvo_s() -> None:
    assert draw(WeightInit.Constant(), []) == 1.0
    assert WeightInit.KaimingUniformFanInLeakyRelu().scale == 5**0.5


@pytest.mark.parametrize("shape", [[], [4], [4, 1]])
def test_the_first_dimension_of_any_shape(shape: list[int]) -> None:
    values = draw(WeightInit.UniformSqrtDim(), shape)
    unit = draw(WeightInit.Uniform(), shape)
    np.testing.assert_allclose(values, unit / (2.0 if shape else 1.0))


@pytest.mark.parametrize(
    ("shape", "expected"),
    [([], (1, 1)), ([7], (7, 7)), ([2, 5], (2, 5)), ([3, 4, 2, 5], (24, 60))],
)
def test_fans(shape: list[int], expected: tuple[int, int]) -> None:
    assert fans(shape) == expected


def test_a_unit_may_have_other_fans_than_its_shape_says() -> None:
    """In a depthwise convolution a channel never sees another."""
    p = DepthwiseConv2DLayer.Params().Set(name="x", filter_shape=[3, 3, 200, 4])
    p.params_init = WeightInit.GaussianSqrtFanIn()
    assert p.Instantiate().vars.w.numpy().std() == pytest.approx(1 / 3, rel=0.03)
    p.params_init = WeightInit.GaussianSqrtFanOut()
    assert p.Instantiate().vars.w.numpy().std() == pytest.approx(1 / 6, rel=0.03)


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16, tf.float64])
def test_dtypes_hold_the_same_numbers(dtype: tf.DType) -> None:
    wide = initial_value(WeightInit.Gaussian(), [50], tf.float32, (0, 1))
    values = initial_value(WeightInit.Gaussian(), [50], dtype, (0, 1))
    assert values.dtype == dtype
    np.testing.assert_array_equal(values, tf.cast(wide, dtype))


def test_a_rule_may_have_a_seed_of_its_own() -> None:
    rule = WeightInit.Gaussian(seed=7)
    first, second = (initial_value(rule, [9], tf.float32, (0, n)) for n in (1, 2))
    np.testing.assert_array_equal(first, second)
    assert np.all(first != draw(WeightInit.Gaussian(seed=8), [9]))


def test_unknown_rules() -> None:
    rule = WeightInit.Xavier().Set(method="xaver")
    with fails(path="WeightInit's method", got="xaver") as info:
        draw(rule)
    assert "'xavier'" in info.value.hint


class ListLayer(BaseLayer):
    """Creates children by name, in order of the list."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("names", [], "Of the children.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        for name in self.params.names:
            self.CreateChild(name, FCLayer.Params().Set(input_dim=8, output_dim=8))


def first_values(name: str = "root", **params: Any) -> dict[str, np.ndarray]:
    p = ListLayer.Params().Set(name=name, names=["a", "b"])
    return weights_of(p.Set(**params).Instantiate())


def weights_of(layer: BaseLayer) -> dict[str, np.ndarray]:
    return {k: v.numpy() for k, v in layer.VariablePaths().items() if k.endswith("w")}


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


def test_values_do_not_depend_on_the_order_of_creation() -> None:
    FCLayer.Params().Set(name="other", input_dim=8, output_dim=8).Instantiate()
    assert same(first_values(), first_values(names=["b", "a"]))
    more = first_values(names=["z", "b", "y", "a"])
    assert same(first_values(), {k: v for k, v in more.items() if k[5] in "ab"})


def test_values_do_not_depend_on_the_device_nor_on_tensorflow_s_seed() -> None:
    initialize_devices(8)
    expected = first_values()
    tf.random.set_seed(99)
    with tf.device("/CPU:1"):
        elsewhere = first_values()
        variable = tf.Variable(1.0)
    assert "CPU:1" in variable.device
    assert same(expected, elsewhere)


def test_values_are_drawn_on_the_host() -> None:
    """An accelerator would draw other numbers."""
    p = FCLayer.Params().Set(name="x", input_dim=2, output_dim=2, has_bias=False)
    with tf.Graph().as_default() as graph, tf.device("/CPU:1"):
        p.Instantiate()
    drawn = [op for op in graph.get_operations() if "Random" in op.type]
    assert drawn
    assert all(op.device.endswith("CPU:0") for op in drawn)


def test_values_do_not_depend_on_eager_execution() -> None:
    layers: list[Any] = []
    p = ListLayer.Params().Set(name="root", names=["a", "b"])

    @tf.function(autograph=False)
    def build() -> None:
        if not layers:
            layers.append(p.Instantiate())

    build()
    assert same(weights_of(layers[0]), first_values())


def test_values_depend_on_path_and_seed() -> None:
    values = first_values()
    assert not np.any(values["root/a/w"] == values["root/b/w"])
    renamed = first_values(name="other")
    assert not np.any(values["root/a/w"] == renamed["other/a/w"])
    reseeded = first_values(random_seed=1)
    assert not np.any(values["root/a/w"] == reseeded["root/a/w"])
    assert same(values, first_values(name="root", random_seed=0))


def test_values_never_change_from_version_to_version() -> None:
    """Uniform numbers are exact; normal ones pass through a logarithm."""
    w = first_values()["root/a/w"]
    digest = hashlib.sha256(w.astype("<f4").tobytes()).hexdigest()
    assert digest[:16] == "7bef0c1a3b7e9ae8"
    np.testing.assert_allclose(
        draw(WeightInit.Gaussian(), [3]), [1.2064347, -1.8821639, 1.2496753], rtol=1e-5
    )


@pytest.mark.parametrize("collections", [False, "moving_vars"])
def test_collections_are_a_list(collections: Any) -> None:
    """An earlier version had `trainable` in this place."""
    with fails(path="WeightParams.collections", got=collections):
        WeightParams([2], None, tf.float32, collections)


def test_a_shape_must_be_of_positive_integers() -> None:
    layer = FCLayer.Params().Set(name="x", input_dim=np.int64(2), output_dim=1)
    assert layer.Instantiate().vars.w.shape == [2, 1]
    with fails(path="x/w", got=[2, 0.5]):
        layer.Set(input_dim=2, output_dim=0.5).Instantiate()
    assert WeightParams((2, 3)).shape == [2, 3]
