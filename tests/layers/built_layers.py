"""Layers that a test builds from a function."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.weights import WeightInit, WeightParams
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.nested_map import NestedMap


class BuiltLayer(BaseLayer):
    """A layer whose `__init__` calls the function `build` with the layer."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("build", None, "Function to call in __init__.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        if self.params.build:
            self.params.build(self)


class SumLayer(BaseLayer):
    """Accumulates the sum of its inputs, and records the accumulated sums."""

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.RegisterAccumulator("total", [2])
        self.received: list[Any] = []

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        self.Accumulate("total", tf.reduce_sum(x, 0))
        return 2.0 * x

    def PostTrainingStepUpdate(self, accumulated: NestedMap) -> None:
        self.received.append(accumulated.total)


def leaf(**params: Any) -> InstantiableParams:
    return FCLayer.Params().Set(input_dim=2, output_dim=1, **params)


def built(build: Any, **params: Any) -> Any:
    return BuiltLayer.Params().Set(name="root", build=build, **params).Instantiate()


def family() -> Any:
    """Returns a layer with a child, a list, a map, a variable and an accumulator."""

    def build(layer: BaseLayer) -> None:
        layer.CreateChild("one", leaf())
        layer.CreateChildren("some", [leaf(), leaf(name="second")])
        layer.CreateChildren("by_key", {"b": leaf(), "a": leaf()})
        layer.CreateVariable("scale", WeightParams([3], WeightInit.Constant(1.0)))
        layer.CreateChild("sums", SumLayer.Params())

    return built(build)
