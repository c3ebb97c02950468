"""Batch norm: its outputs, its moving averages and their rates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.batch_norm import BatchNormLayer, averaging_rate
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from tests.support.cases import exhaustive
from tests.support.errors import fails

SHAPES = [[8, 5, 6, 3], [8, 3], [8, 4, 3]]


def batch_norm(**params: Any) -> Any:
    """Returns a layer with a gamma and beta that are visible in the outputs."""
    p = BatchNormLayer.Params().Set(name="bn", dim=3, decay=0.7)
    layer = p.Set(**params).Instantiate()
    layer.vars.gamma.assign(tf.cast([0.5, 2.0, -1.0], layer.vars.gamma.dtype))
    layer.vars.beta.assign(tf.cast([0.0, 1.0, 3.0], layer.vars.beta.dtype))
    return layer


def values(shape: list[int], mean: float = 1.0, deviation: float = 2.0) -> np.ndarray:
    normal = tf.random.stateless_normal(shape, [4, 5], dtype=tf.float64).numpy()
    return np.array(normal * deviation * [1.0, 0.5, 2.0] + mean * np.array([1, -2, 3]))


def moments(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    rows = x.astype(np.float64).reshape(-1, 3)
    return rows.mean(0), rows.var(0)


def formula(x: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    normal = (x.astype(np.float64) - mean) / np.sqrt(variance + 1e-3)
    return normal * [0.5, 2.0, -1.0] + [0.0, 1.0, 3.0]


def set_averages(layer: Any, mean: np.ndarray, variance: np.ndarray) -> None:
    layer.vars.moving_mean.assign(mean)
    layer.vars.moving_variance.assign(variance)


def assert_averages(layer: Any, mean: Any, variance: Any, *tolerances: float) -> None:
    np.testing.assert_allclose(layer.vars.moving_mean, mean, tolerances[0])
    np.testing.assert_allclose(layer.vars.moving_variance, variance, tolerances[-1])


def micro_batches(x: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    return np.split(x, np.cumsum(sizes)[:-1])


def train(layer: Any, parts: list[Any], step: Any = None) -> None:
    """Runs one training step on micro-batches."""
    sums: dict[str, tf.Tensor] = {}
    for part in parts:
        with ForwardContext() as context:
            layer(part)
        for path, share in context.accumulated.items():
            sums[path] = sums.get(path, 0.0) + share
    with ForwardContext(step=step):
        layer.PostTrainingStepUpdate(layer.AccumulatedTree(sums))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(tf.float64, 1e-12), (tf.float32, 1e-5), (tf.bfloat16, 0.03)],
)
@pytest.mark.parametrize("do_eval", [False, True])
def test_outputs_are_those_of_the_formula(
    shape: list[int], dtype: tf.DType, tolerance: float, do_eval: bool
) -> None:
    layer = batch_norm(fprop_dtype=dtype, dtype=tf.float64)
    x = tf.cast(values(shape), dtype)
    mean, variance = np.array([0.5, -1.0, 2.0]), np.array([1.0, 0.1, 4.0])
    set_averages(layer, mean, variance)
    if not do_eval:
        mean, variance = moments(tf.cast(x, tf.float64).numpy())
    with ForwardContext(do_eval=do_eval):
        y = layer(x)
    assert y.dtype == dtype
    expected = formula(tf.cast(x, tf.float64).numpy(), mean, variance)
    np.testing.assert_allclose(
        tf.cast(y, tf.float64), expected, rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize(
    ("dtype", "far", "tolerance"),
    [(tf.float64, 1e9, 1e-9), (tf.float32, 500.0, 1e-3), (tf.bfloat16, 500.0, 0.02)],
)
def test_evaluation_is_accurate_far_from_zero(
    dtype: tf.DType, far: float, tolerance: float
) -> None:
    """The mean is subtracted before anything is rounded to the layer's dtype."""
    wide = tf.float64 if dtype == tf.float64 else tf.float32
    layer = batch_norm(fprop_dtype=dtype, dtype=wide)
    x = tf.cast(values([64, 3], mean=far), dtype)
    exact = tf.cast(x, tf.float64).numpy()
    mean, variance = moments(exact)
    set_averages(layer, mean, variance)
    with ForwardContext(do_eval=True):
        y = tf.cast(layer(x), tf.float64)
    expected = formula(exact, mean, variance)
    np.testing.assert_allclose(y, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("sizes", [[8], [4, 4], [1] * 8, [3, 5]], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_averages_move_by_the_moments_of_the_whole_batch(
    sizes: list[int], shape: list[int], dtype: tf.DType
) -> None:
    layer, x = batch_norm(dtype=dtype), values(shape)
    mean, variance = moments(x)
    expected_mean, expected_variance = np.zeros(3), np.ones(3)
    for _ in range(2):
        train(layer, [tf.constant(part, dtype) for part in micro_batches(x, sizes)])
        expected_mean = 0.7 * expected_mean + 0.3 * mean
        expected_variance = 0.7 * expected_variance + 0.3 * variance
    tolerance = 1e-12 if dtype == tf.float64 else 1e-6
    assert_averages(layer, expected_mean, expected_variance, tolerance)


@pytest.mark.parametrize("decay", [0.5, 0.9997])
def test_averages_move_at_the_rates_of_averaged_weights(decay: float) -> None:
    """The step is known, so that the two agree from the first step."""
    layer = batch_norm(decay=decay, dtype=tf.float64)
    mean, variance = np.zeros(3), np.ones(3)
    for step in range(12):
        x = values([8, 3], mean=step, deviation=1 + step)
        train(layer, [tf.constant(x)], tf.constant(step, tf.int64))
        kept = min(decay, (2 + step) / (11 + step))
        mean = kept * mean + (1 - kept) * moments(x)[0]
        variance = kept * variance + (1 - kept) * moments(x)[1]
    assert_averages(layer, mean, variance, 1e-12)


@pytest.mark.parametrize("sizes", [[16], [4] * 4, [1] * 16], ids=str)
def test_a_small_variance_survives_a_large_mean(sizes: list[int]) -> None:
    """This holds from the first step, when the moving mean is still far away."""
    layer = batch_norm(decay=0.0)
    x = values([16, 9, 9, 3], mean=1000.0, deviation=0.1).astype(np.float32)
    train(layer, [tf.constant(part) for part in micro_batches(x, sizes)])
    assert_averages(layer, *moments(x), 1e-6, 1e-2)


def test_a_constant_channel_has_no_negative_variance() -> None:
    for constant in np.geomspace(1e3, 1e6, 20):
        layer = batch_norm(decay=0.0, dtype=tf.float64)
        train(layer, [tf.fill([n, 3], tf.constant(constant)) for n in (3, 5, 7)])
        assert np.all(layer.vars.moving_variance.numpy() >= 0.0)
        np.testing.assert_allclose(layer.vars.moving_variance, 0.0, atol=1e-3)


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.float64])
def test_a_single_row_is_its_own_mean(dtype: tf.DType) -> None:
    layer = batch_norm(decay=0.0, fprop_dtype=dtype, dtype=tf.float32)
    train(layer, [tf.constant([[1.0, 2.0, 4.0]])])
    assert_averages(layer, [1.0, 2.0, 4.0], 0.0, 0.0)
    np.testing.assert_allclose(tf.cast(layer(tf.ones([1, 3])), tf.float32), [[0, 1, 3]])


@pytest.mark.parametrize("fprop_dtype", [tf.bfloat16, tf.float32, tf.float64])
@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float32, tf.float64])
def test_evaluation_in_another_dtype_than_the_averages(
    dtype: tf.DType, fprop_dtype: tf.DType
) -> None:
    layer = batch_norm(dtype=dtype, fprop_dtype=fprop_dtype)
    layer.vars.moving_mean.assign([1.0, 1.0, 1.0])
    with ForwardContext(do_eval=True):
        y = layer(tf.ones([2, 3]))
    assert y.dtype == fprop_dtype
    np.testing.assert_array_equal(tf.cast(y, tf.float32), [[0.0, 1.0, 3.0]] * 2)


def test_averages_are_state_and_never_narrow() -> None:
    layer = batch_norm(dtype=tf.bfloat16)
    dtypes = {name: (v.dtype, v.trainable) for name, v in layer.vars.items()}
    assert dtypes == {
        "beta": (tf.bfloat16, True),
        "gamma": (tf.bfloat16, True),
        "moving_mean": (tf.float32, False),
        "moving_variance": (tf.float32, False),
    }


def test_the_number_of_examples_may_be_unknown() -> None:
    layer = batch_norm()

    @tf.function(input_signature=[tf.TensorSpec([None, 3])], autograph=False)
    def sums(x: tf.Tensor) -> Any:
        with ForwardContext() as context:
            layer(x)
        return context.accumulated

    x = values([5, 3]).astype(np.float32)
    np.testing.assert_array_equal(sums(tf.constant(x))["bn/count"], 5.0)
    np.testing.assert_allclose(sums(tf.constant(x))["bn/sum"], x.sum(0), rtol=1e-5)


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9, 0.9999])
def test_the_rate_is_the_larger_of_two(decay: float) -> None:
    for n in (1, 2, 9, 80, 89_990, 10**9):
        want = 1.0 - min(decay, (1 + n) / (10 + n))
        np.testing.assert_allclose(averaging_rate(decay, tf.constant(n)), want, 1e-9)


# ---- Paddings.

LENGTHS = [4, 0, 2, 1, 3]
PADDINGS = (np.arange(4) >= np.array(LENGTHS)[:, np.newaxis]).astype(np.float32)


@pytest.mark.parametrize("shape", [[5, 4, 3], [5, 4, 2, 3]])
@pytest.mark.parametrize("ones", [0, 1])
@pytest.mark.parametrize("do_eval", [False, True])
def test_padded_positions_are_in_no_moment_and_have_outputs_of_zero(
    shape: list[int], ones: int, do_eval: bool
) -> None:
    layer, x, kept = (
        batch_norm(dtype=tf.float64, decay=0.0),
        values(shape),
        PADDINGS < 1,
    )
    paddings = PADDINGS.reshape([5, 4] + [1] * ones)
    mean, variance = moments(x[kept])
    set_averages(layer, mean, variance)
    with ForwardContext(do_eval=do_eval) as context:
        y = layer(tf.constant(x), paddings).numpy()
    np.testing.assert_allclose(y[kept], formula(x[kept], mean, variance), atol=1e-12)
    np.testing.assert_array_equal(y[~kept], 0.0)
    if not do_eval:
        assert context.accumulated["bn/count"] == x[kept].size / 3


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e30])
def test_padded_values_may_be_anything(value: float) -> None:
    def results(x: np.ndarray, paddings: np.ndarray) -> list[tf.Tensor]:
        layer, inputs = batch_norm(), tf.constant(x, tf.float32)
        with ForwardContext() as context, tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = layer(inputs, paddings)
            loss = tf.reduce_sum(outputs**2)
        weights = [layer.vars.gamma, layer.vars.beta, inputs]
        return [outputs, *context.accumulated.values(), *tape.gradient(loss, weights)]

    x = values([5, 4, 3])
    far = np.where(PADDINGS[..., np.newaxis] == 1.0, value, x)
    for got, want in zip(
        results(far, PADDINGS == 1.0), results(x, PADDINGS), strict=True
    ):
        np.testing.assert_array_equal(got, want)


def test_a_micro_batch_of_only_padding_counts_for_nothing() -> None:
    layer, x = batch_norm(dtype=tf.float64), tf.constant(values([5, 4, 3]))
    train(layer, [x])
    before = [v.numpy() for v in layer.vars.Flatten()]
    with ForwardContext() as context, tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(x, tf.ones([5, 4])))
    gradients = tape.gradient(loss, [layer.vars.gamma, layer.vars.beta])
    np.testing.assert_array_equal(gradients, np.zeros([2, 3]))
    layer.PostTrainingStepUpdate(layer.AccumulatedTree(context.accumulated))
    np.testing.assert_array_equal(before, [v.numpy() for v in layer.vars.Flatten()])


@pytest.mark.parametrize("shape", [[4], [5, 3], [5, 4, 1, 1], [5, 4, 3]])
def test_paddings_of_other_shapes_are_refused(shape: list[int]) -> None:
    with fails(path="bn.paddings"):
        batch_norm()(tf.ones([5, 4, 3]), tf.zeros(shape))


class PaddedNorm(BaseLayer):
    """Batch norm of sequences, which passes their paddings on."""

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.CreateChild("bn", BatchNormLayer.Params().Set(dim=3, decay=0.0))

    def FProp(self, theta: NestedMap, x: tf.Tensor, paddings: tf.Tensor) -> Any:
        return self.bn.FProp(theta.bn, x, paddings) * 2.0, paddings


def _loss(outputs: Any, targets: tf.Tensor) -> NestedMap:
    return NestedMap(
        loss=(tf.reduce_mean((outputs[0] - targets) ** 2), tf.constant(1.0))
    )


@pytest.mark.parametrize("num_micro_batches", [exhaustive(1), 3, exhaustive(5)])
def test_paddings_in_a_pipeline(num_micro_batches: int) -> None:
    x = values([5, 4, 3]).astype(np.float32)
    results = []
    for splits in (1, 2):
        p = PipeliningLayer.Params().Set(name="pipe", splits=splits)
        cells = [PaddedNorm.Params(), PaddedNorm.Params()]
        p.Set(cell_tpl=cells, num_micro_batches=num_micro_batches)
        layer = p.Instantiate()
        result = layer.ComputeGradients(layer.theta, [x, PADDINGS], x, _loss)
        sums = result.accumulated.cells[0].bn
        assert sums.count == sum(LENGTHS)
        np.testing.assert_allclose(sums.sum, x[PADDINGS < 1].sum(0), rtol=1e-5)
        flat = [*result.gradients.Flatten(), *result.accumulated.Flatten()]
        results.append([v.numpy().tobytes() for v in flat if v is not None])
        assert all(np.isfinite(v).all() for v in flat if v is not None)
    assert results[0] == results[1]
