"""Flops that classes give by FPropMeta, and flops of loops, count as they must."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.core.errors import UserLayerError
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.builder_layers import FnLayer, ParallelLayer
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.model_size import layer_sizes
from lingvo_pipe.layers.dense import ActivationLayer, FCLayer
from lingvo_pipe.layers.sequential import SequentialLayer
from lingvo_pipe.nested_map import NestedMap
from tests.support.errors import fails


def _dense(num_in: int, num_out: int) -> InstantiableParams:
    return FCLayer.Params().Set(input_dim=num_in, output_dim=num_out)


class PricedLayer(BaseLayer):
    """A layer whose FPropMeta returns its flops, perhaps with a layer within it."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("flops", 7, "Flops by FPropMeta.")
        p.Define("inner", None, "Params of another layer.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        if self.params.inner:
            self.CreateChild("inner", self.params.inner)

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> Any:
        return self.inner.FProp(theta.inner, x) if self.params.inner else tf.tanh(x)

    @classmethod
    def FPropMeta(cls, p: InstantiableParams, x: Any) -> NestedMap:
        assert x.num_elements() == 12
        return NestedMap(flops=p.flops, out_shapes=(x,))


@pytest.mark.parametrize("is_nested", [False, True])
def test_flops_that_a_class_gives_count_in_place_of_the_traced(is_nested: bool) -> None:
    """Flops of an outer layer include the flops of the layers within it."""
    priced = PricedLayer.Params()
    outer = PricedLayer.Params().Set(flops=100, inner=priced)
    layers = [priced, ActivationLayer.Params(), outer]
    if is_nested:
        whole = SequentialLayer.Params().Set(sub=layers)
        (size,) = layer_sizes([SequentialLayer.Params().Set(sub=[whole])], (4, 3))
        assert size.flops == 7 + 12 + 100
        assert whole.cls.FPropMeta(whole, (4, 3)).flops == size.flops
    else:
        assert [x.flops for x in layer_sizes(layers, (4, 3))] == [7, 12, 100]


@pytest.mark.parametrize(
    "meta",
    [3, NestedMap(flops=3)]
    + [NestedMap(flops=flops, out_shapes=((4, 5),)) for flops in ("3", -3)]
    + [NestedMap(flops=3, out_shapes=shapes) for shapes in ((4, 5), ((4, 6),))],
)
def test_a_wrong_cost_is_reported_with_its_layer(meta: Any) -> None:
    class WrongLayer(BaseLayer):
        def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
            return x

        @classmethod
        def FPropMeta(cls, p: InstantiableParams, *shapes: Any) -> Any:
            return meta

    layers = [_dense(3, 5), WrongLayer.Params().Set(name="odd"), _dense(5, 2)]
    path = "layers[1], WrongLayer 'odd'.WrongLayer.FPropMeta"
    with fails(UserLayerError, path=path, got=meta):
        layer_sizes(layers, (4, 3))


class LoopLayer(BaseLayer):
    """A layer that runs another one for each row, in a loop."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("inner", None, "Params of the layer.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.CreateChild("inner", self.params.inner)

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        return tf.map_fn(lambda row: self.inner.FProp(theta.inner, row), x)


@pytest.mark.parametrize(
    ("inner", "flops"), [(ActivationLayer, 4 * 12), (PricedLayer, 4 * 7)]
)
def test_a_layer_within_a_loop_counts_in_each_iteration(inner: Any, flops: int) -> None:
    loop = LoopLayer.Params().Set(inner=inner.Params())
    (size,) = layer_sizes([loop], (4, 3, 4))
    assert size.flops == flops


class EndlessLayer(BaseLayer):
    """A loop whose number of iterations only a run decides."""

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        (x,) = tf.while_loop(lambda x: x[0, 0] < 9.0, lambda x: [x + 1.0], [x])
        return x


def test_a_loop_of_unknown_length_is_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    endless = EndlessLayer.Params()
    for rows in (2, 3):
        (size,) = layer_sizes([endless], (rows, 5))
        assert size.flops == rows * 5 + 1  # The body's and the condition's.
    (record,) = [x for x in caplog.records if x.levelname == "WARNING"]
    assert "EndlessLayer" in record.getMessage()


class FewShapesLayer(BaseLayer):
    """A layer whose static FPropMeta takes some of FProp's arguments."""

    def FProp(
        self,
        theta: NestedMap,
        x: tf.Tensor,
        bias: Any = None,
        activation: Any = None,
    ) -> tf.Tensor:
        return x if activation is None else activation(x)

    @staticmethod
    def FPropMeta(p: InstantiableParams, x: Any, bias: Any) -> NestedMap:
        assert bias is None
        return NestedMap(flops=x.num_elements(), out_shapes=(x.ToTensorShape(),))


class CallerLayer(BaseLayer):
    """A layer that calls another one with a named argument."""

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.CreateChild("inner", FewShapesLayer.Params())

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        return self.inner.FProp(theta.inner, x=x, activation=tf.tanh)


@pytest.mark.parametrize("layer", [FewShapesLayer, CallerLayer])
def test_fprop_meta_gets_the_arguments_that_it_takes(layer: Any) -> None:
    (size,) = layer_sizes([layer.Params()], (4, 3))
    assert size.flops == 12


class RefusingLayer(PricedLayer):
    """A layer whose FPropMeta refuses all shapes."""

    @classmethod
    def FPropMeta(cls, p: InstantiableParams, x: Any) -> NestedMap:
        raise NotImplementedError


def test_layers_below_one_with_own_flops_need_none() -> None:
    refusing = RefusingLayer.Params()
    outer = PricedLayer.Params().Set(inner=refusing)
    assert layer_sizes([outer], (4, 3))[0].flops == outer.flops
    path = "layers[0], RefusingLayer ''.RefusingLayer.FPropMeta"
    with fails(UserLayerError, path=path) as info:
        layer_sizes([refusing], (4, 3))
    assert "NotImplementedError" in info.value.hint


def test_nested_parallel_layers_are_traced_once() -> None:
    traced = []

    def run(x: tf.Tensor) -> tf.Tensor:
        traced.append(x)
        return tf.tanh(x)

    p = FnLayer.Params().Set(fn=run)
    for _ in range(8):
        p = ParallelLayer.Params().Set(sub=[p])
    (size,) = layer_sizes([p], (4, 3))
    assert (size.flops, len(traced)) == (12, 1)
