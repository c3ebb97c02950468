"""Alike layers share a trace, unless something in it follows from where they are."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core import forward_context
from lingvo_pipe.layers.core.accumulators import Accumulator
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.core.weights import WeightParams
from lingvo_pipe.layers.dropout import DropoutLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.pipeline.tracing.layer_identity import LayerIdentity
from tests.pipeline.example_layers import pipeline, plain_outputs

DIM = 2
NUM_CELLS = 11  # The last two have paths of different lengths.
FEW_CELLS = 3


class PlacedLayer(BaseLayer):
    """Multiplies, and adds a number that it makes of itself."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("number", None, "What makes the number.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.CreateVariable("w", WeightParams([DIM, DIM]))
        self.CreateChild("dropout", DropoutLayer.Params().Set(keep_prob=0.5))

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        y = self.dropout.FProp(theta.dropout, tf.matmul(x, theta.w))
        return y + self.params.number(self)


def _digits(text: str) -> float:
    return float(re.findall("[0-9]+", text)[0])


def _number_by_name(layer: BaseLayer) -> float:
    return _digits(dict(layer.params.IterParams())["name"])


def _number_of_example(layer: BaseLayer) -> tf.Tensor:
    """Random numbers by the layer's path, in a scope of its name."""
    with tf.name_scope(layer.params.name):
        context = forward_context.current_context()
        return context.uniform(layer.path, layer.params.random_seed, [2, DIM])


TELLING: dict[str, Callable[[Any], float]] = {
    "length of the path": lambda layer: len(layer.path),
    "path in text": lambda layer: _digits("/".join(["", layer.path])),
    "path of a child": lambda layer: _digits(layer.dropout.path),
    "name": lambda layer: _digits(layer.params.name),
    "name by Get": lambda layer: _digits(layer.params.Get("name")),
    "name among all": _number_by_name,
    "name in a copy": lambda layer: _digits(layer.params.Copy().name),
    "place among siblings": lambda layer: layer.parent.cells.index(layer),
    "name of a variable": lambda layer: _digits(layer.vars.w.name),
}
MUTE: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda layer: 1.0,
    "another param": lambda layer: layer.params.random_seed,
    "name of a child": lambda layer: len(layer.dropout.params.name),
    "random numbers": _number_of_example,
}


def _pipeline(number: Callable, num_cells: int = NUM_CELLS) -> PipeliningLayer:
    return pipeline([PlacedLayer.Params().Set(number=number)] * num_cells, 2, 2)


def _outputs(layer: PipeliningLayer) -> tf.Tensor:
    """Returns the pipeline's outputs, after a comparison with the cells'."""
    x = tf.random.stateless_normal([4, DIM], [1, 2])
    step, first = tf.constant(3, tf.int64), tf.constant(0, tf.int64)
    with ForwardContext(step=step):
        got = layer.FProp(layer.theta, x)
    halves = []
    for i in (0, 2):
        with ForwardContext(step=step, first_example=first + i):
            halves.append(plain_outputs(layer, [x[i : i + 2]]))
    np.testing.assert_allclose(got, tf.concat(halves, 0), rtol=1e-4, atol=1e-5)
    return got


def _num_traces(layer: PipeliningLayer) -> int:
    (function,) = layer.functions
    return len({id(trace) for trace in function._traced.traces})


@pytest.mark.parametrize("name", TELLING)
def test_what_follows_from_its_place_is_each_layers_own(name: str) -> None:
    by_path = name in ("length of the path", "path of a child")
    num_cells = NUM_CELLS if by_path else FEW_CELLS
    layer = _pipeline(TELLING[name], num_cells)
    _outputs(layer)
    alike = 2 if name == "length of the path" else num_cells
    assert _num_traces(layer) == alike


@pytest.mark.parametrize("name", MUTE)
def test_a_place_that_makes_no_difference_is_shared(name: str) -> None:
    layer = _pipeline(MUTE[name])
    _outputs(layer)
    assert _num_traces(layer) == 1


class MadeLayer(BaseLayer):
    """A layer that a function makes, which may tell odd layers from even ones."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("make", _make_nothing, "What makes the layer's parts.")
        p.Define("value", None, "Any value.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.params.make(self, _digits(self.params.name) % 2 == 1)


class SumFrom(Accumulator):
    """A sum that begins with a constant."""

    def __init__(self, start: float):
        self.start = start

    def DefaultValue(self) -> tf.Tensor:
        return tf.constant(self.start)


def _make_nothing(layer: BaseLayer, is_odd: bool) -> None:
    del layer, is_odd


def _create_weight(layer: BaseLayer, is_odd: bool) -> None:
    layer.CreateVariable("w", WeightParams([2]), trainable=is_odd)


def _register_sum(layer: BaseLayer, is_odd: bool) -> None:
    layer.RegisterAccumulator("sum", [1 + is_odd])


def _register_lingvo_sum(layer: BaseLayer, is_odd: bool) -> None:
    layer.RegisterAccumulator("sum", SumFrom(float(is_odd)))


def _create_dropout(layer: BaseLayer, is_odd: bool) -> None:
    layer.CreateChild("drop", DropoutLayer.Params().Set(keep_prob=0.5 + 0.1 * is_odd))


def _create_named_dropout(layer: BaseLayer, is_odd: bool) -> None:
    layer.CreateChild("drop", DropoutLayer.Params().Set(name=f"drop_{is_odd}"))


def _choose_child(layer: Any, is_odd: bool) -> None:
    layer.CreateChildren("some", [DropoutLayer.Params()] * 2)
    layer.chosen = layer.some[is_odd]


def _identity(number: int, **params: Any) -> LayerIdentity:
    p = MadeLayer.Params().Set(name=f"layer_{number}", **params)
    return LayerIdentity(p.Instantiate(), ())


@pytest.mark.parametrize(
    "make",
    [
        _create_weight,
        _register_sum,
        _register_lingvo_sum,
        _create_dropout,
        _create_named_dropout,
        _choose_child,
    ],
)
def test_layers_whose_names_decide_their_parts_are_not_alike(make: Callable) -> None:
    assert _identity(0, make=make).matches(_identity(2, make=make))
    assert not _identity(0, make=make).matches(_identity(1, make=make))


@dataclasses.dataclass(frozen=True)
class Setting:
    """A param's value whose second field is not compared."""

    value: Any
    more: int = dataclasses.field(default=0, compare=False)


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (True, 1, False),
        (1, 1.0, False),
        (0.0, -0.0, False),
        ([1], [True], False),
        ({"a": (1.0,)}, {"a": (1,)}, False),
        ({1: "a"}, {True: "a"}, False),
        (float("nan"), float("nan"), True),
        ({"a": (1.0, [None])}, {"a": (1.0, [None])}, True),
        ({1, 2}, {2, 1}, True),
        ({1}, {1.0}, False),
        (Setting(1), Setting(1), True),
        (Setting(1), Setting(1.0), False),
        (Setting(1, 2), Setting(1, 3), False),
        (Setting, dataclasses.make_dataclass("Setting", []), False),
    ],
)
def test_values_of_params_have_the_same_types(a: Any, b: Any, same: bool) -> None:
    """True equals 1 and 1.0, but FProp may tell them apart."""
    assert _identity(0, value=a).matches(_identity(0, value=b)) is same


def test_variables_of_equal_values_are_not_alike() -> None:
    identities = [_identity(0, value=tf.Variable(1.0)) for _ in range(2)]
    assert not identities[0].matches(identities[1])


class NamedMetricLayer(BaseLayer):
    """Reports the mean of its inputs by its name."""

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        mean = tf.reduce_mean(x)
        self.AddMetric(f"mean_{self.params.name}", mean, tf.constant(2.0))
        return 2.0 * x


def _mean(outputs: tf.Tensor, targets: Any) -> NestedMap:
    return NestedMap(loss=(tf.reduce_mean(outputs), tf.constant(2.0)))


def test_metrics_may_be_named_by_the_layer() -> None:
    layer = pipeline([NamedMetricLayer.Params()] * 3, 3, 2)
    x = tf.ones([4, DIM])
    metrics = layer.ComputeMetrics(layer.theta, [x], None, _mean)
    means = {name: float(mean) for name, (mean, _) in metrics.items()}
    assert means == {
        "mean_cells_0": 1.0,
        "mean_cells_1": 2.0,
        "mean_cells_2": 4.0,
        "loss": 8.0,
    }
