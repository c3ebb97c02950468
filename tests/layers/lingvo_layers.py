"""Layers as a user of Lingvo writes them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.accumulators import Accumulator
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.weights import WeightInit, WeightParams
from lingvo_pipe.nested_map import NestedMap


class Projection(BaseLayer):
    """Creates its weights after `__init__`, which changes the params."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("dim", 3, "Channels.")
        p.Define("sub", None, "A child's params.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.params.dim += 1
        self.order = ["init"]
        if self.params.sub is not None:
            self.CreateChild("sub", self.params.sub)

    def _CreateLayerVariables(self) -> None:
        super()._CreateLayerVariables()
        self.order.append("variables")
        dim, groups = self.params.dim, [f"{type(self).__name__}_vars"]
        weight = WeightParams([dim, dim], collections=groups)
        self.CreateVariable("w", weight)

    def FProp(self, theta: NestedMap, inputs: tf.Tensor) -> tf.Tensor:
        with tf.name_scope(self.params.name):
            return tf.matmul(self._CastToFPropDtype(inputs), theta.w)


class Adding(Accumulator):
    """A sum that begins with a constant."""

    def __init__(self, shape: list[int], start: float = 0.0):
        self.shape, self.start = shape, start

    def DefaultValue(self) -> tf.Tensor:
        return tf.fill(self.shape, self.start)

    def Update(self, value: tf.Tensor) -> None:
        self.SetValue(self.GetValue() + value)


class Norm(BaseLayer):
    """Subtracts a moving mean, in Lingvo's form."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("dim", 3, "Channels.")
        p.Define("start", 0.0, "Initial value of the sums.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.RegisterAccumulator("count", Adding([]))
        self.RegisterAccumulator("total", Adding([self.params.dim], self.params.start))

    def _CreateLayerVariables(self) -> None:
        moving = WeightParams(
            [self.params.dim],
            WeightInit.Constant(0.0),
            tf.float32,
            ["moving_vars", f"{type(self).__name__}_vars"],
        )
        self.CreateVariable("moving_mean", moving, trainable=False)
        self.CreateVariable("beta", WeightParams([self.params.dim]))

    def FProp(self, theta: NestedMap, inputs: tf.Tensor) -> tf.Tensor:
        with tf.name_scope(self.params.name):
            self.accumulators.count.Update(tf.cast(tf.shape(inputs)[0], tf.float32))
            self.accumulators.total.Update(tf.reduce_sum(inputs, 0))
            return inputs - theta.moving_mean + theta.beta

    def PostTrainingStepUpdate(self) -> Any:  # type: ignore[override]
        count = self.accumulators.count.GetValue()
        mean = self.accumulators.total.GetValue() / count
        self.accumulators.count.Reset()
        return tf.group(self.vars.moving_mean.assign(mean))
