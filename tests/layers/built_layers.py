"""Layers that a test puts together as it needs them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.weight_init import WeightInit
from lingvo_pipe.layers.weight_params import WeightParams
from lingvo_pipe.nested_map import NestedMap


class BuiltLayer(BaseLayer):
    """Made by the function `build`, called with the layer in its `__init__`."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("build", None, "What to do in __init__.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        if self.params.build:
            self.params.build(self)


class SumLayer(BaseLayer):
    """Hands over the sum of its inputs, and remembers totals."""

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
    """A layer with a child, a list, a map, a variable and an accumulator."""

    def build(layer: BaseLayer) -> None:
        layer.CreateChild("one", leaf())
        layer.CreateChildren("some", [leaf(), leaf(name="second")])
        layer.CreateChildren("by_key", {"b": leaf(), "a": leaf()})
        layer.CreateVariable("scale", WeightParams([3], WeightInit.Constant(1.0)))
        layer.CreateChild("sums", SumLayer.Params())

    return built(build)
