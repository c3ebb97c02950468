"""Updates after a step, with and without the sums as an argument."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.core.errors import UserRuntimeError
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.devices.stage_devices import initialize_devices
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from tests.layers.built_layers import SumLayer, built
from tests.layers.lingvo_layers import Adding, Norm, Projection
from tests.support.errors import fails


class Wrapping(BaseLayer):
    """Updates a child of each kind itself, without an argument."""

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.CreateChild("norm", Norm.Params())
        self.CreateChild("sums", SumLayer.Params())
        self.updated: list[str] = []

    def PostTrainingStepUpdate(self) -> Any:  # type: ignore[override]
        self.updated.append(self.path)
        self.sums.PostTrainingStepUpdate()
        return super().PostTrainingStepUpdate()  # type: ignore[call-arg]


def sums_of(layer: Any, x: tf.Tensor) -> Any:
    with ForwardContext() as context:
        layer(x)
    return layer.AccumulatedTree(context.accumulated)


@pytest.mark.parametrize("start", [0.0, 10.0])
def test_an_update_without_argument_reads_its_accumulators(start: float) -> None:
    layer = Norm.Params().Set(name="x", start=start).Instantiate()
    x = tf.constant([[1.0, 2.0, 3.0], [3.0, 4.0, 5.0]])
    sums = sums_of(layer, x)
    np.testing.assert_array_equal(sums.total, [4.0, 6.0, 8.0])
    layer.PostTrainingStepUpdate(sums)
    expected = (np.array([4.0, 6.0, 8.0]) + start) / 2
    np.testing.assert_array_equal(layer.vars.moving_mean, expected)
    np.testing.assert_array_equal(layer.accumulators.count.GetValue(), 0.0)


def test_updates_with_and_without_argument_mix() -> None:
    layer: Any = built(lambda x: x.CreateChild("one", Wrapping.Params()))
    tree = layer.AccumulatedTree(
        {
            "root/one/norm/count": tf.constant(2.0),
            "root/one/norm/total": tf.constant([2.0, 4.0, 6.0]),
            "root/one/sums/total": tf.constant([5.0, 6.0]),
        }
    )
    layer.PostTrainingStepUpdate(tree)
    assert layer.one.updated == ["root/one"]
    np.testing.assert_array_equal(layer.one.norm.vars.moving_mean, [1.0, 2.0, 3.0])
    assert len(layer.one.sums.received) == 2  # Asked, and by the inherited update.
    np.testing.assert_array_equal(layer.one.sums.received[0], [5.0, 6.0])


def test_sums_are_not_left_over() -> None:
    layer = Norm.Params().Set(name="x").Instantiate()
    layer.PostTrainingStepUpdate(sums_of(layer, tf.ones([2, 3])))
    with fails(UserRuntimeError, path="x.PostTrainingStepUpdate"):
        layer.PostTrainingStepUpdate()


def test_lingvo_s_layers_train_in_a_pipeline_of_any_stages() -> None:
    """The same bytes, from the sums of four micro-batches."""
    initialize_devices(8)
    x = tf.reshape(tf.range(32.0), [8, 4])
    found = []
    for splits in (1, 2, 3):
        cells = [Projection.Params(), Norm.Params().Set(dim=4), Projection.Params()]
        p = PipeliningLayer.Params().Set(name="pipe", cell_tpl=cells, splits=splits)
        layer = p.Set(num_micro_batches=4).Instantiate()
        result = layer.ComputeGradients(layer.theta, [x], x, square_error)
        layer.PostTrainingStepUpdate(result.accumulated)
        found.append(tf.nest.flatten([result.gradients.cells, layer.vars]))
        mean = tf.reduce_mean(layer.cells[0](x), 0)
        np.testing.assert_allclose(layer.cells[1].vars.moving_mean, mean, rtol=1e-5)
    for one, two, three in zip(*found, strict=True):
        if one is not None:
            np.testing.assert_array_equal(one, two)
            np.testing.assert_array_equal(one, three)


def square_error(outputs: tf.Tensor, targets: tf.Tensor) -> NestedMap:
    rows = tf.cast(tf.shape(outputs)[0], tf.float32)
    return NestedMap(loss=(tf.reduce_sum((outputs - targets) ** 2), rows))


def test_an_accumulator_belongs_to_one_layer() -> None:
    shared = Adding([])

    def build(layer: BaseLayer) -> None:
        layer.RegisterAccumulator("a", shared)
        layer.RegisterAccumulator("b", shared)

    with fails(path="root/b", got="the one of root/a"):
        built(build)


def test_an_accumulator_has_a_dtype_of_its_own() -> None:
    with fails(path="root/a", got=tf.float64):
        built(lambda x: x.RegisterAccumulator("a", Adding([]), tf.float64))
