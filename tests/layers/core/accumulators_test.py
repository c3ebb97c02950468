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
from tests.layers.built_layers import SumLayer, built
from tests.layers.lingvo_layers import Adding, Norm
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


class NormWithSums(Norm):
    """Gets the sums as an argument, and reads its accumulators all the same."""

    def PostTrainingStepUpdate(self, accumulated: NestedMap) -> Any:  # type: ignore[override]
        np.testing.assert_array_equal(accumulated.count, 2.0)
        return super().PostTrainingStepUpdate()


@pytest.mark.parametrize("cls", [Norm, NormWithSums])
@pytest.mark.parametrize("start", [0.0, 10.0])
def test_an_update_reads_its_accumulators(start: float, cls: Any) -> None:
    layer = cls.Params().Set(name="x", start=start).Instantiate()
    with ForwardContext() as context:
        layer(tf.constant([[1.0, 2.0, 3.0], [3.0, 4.0, 5.0]]))
    sums = layer.AccumulatedTree(context.accumulated)
    np.testing.assert_array_equal(sums.total, [4.0, 6.0, 8.0])
    layer.PostTrainingStepUpdate(sums)
    expected = (np.array([4.0, 6.0, 8.0]) + start) / 2
    np.testing.assert_array_equal(layer.vars.moving_mean, expected)
    np.testing.assert_array_equal(layer.accumulators.count.GetValue(), 0.0)
    with fails(UserRuntimeError, path="x.PostTrainingStepUpdate"):
        layer.PostTrainingStepUpdate()  # The sums are not left over.


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


def test_an_accumulator_belongs_to_one_layer_and_has_its_own_dtype() -> None:
    shared = Adding([])

    def build(layer: BaseLayer) -> None:
        layer.RegisterAccumulator("a", shared)
        layer.RegisterAccumulator("b", shared)

    with fails(path="root/b", got="the one of root/a"):
        built(build)
    with fails(path="root/a", got=tf.float64):
        built(lambda x: x.RegisterAccumulator("a", Adding([]), tf.float64))
