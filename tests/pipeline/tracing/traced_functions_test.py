"""Functions are added to a layer before a pipeline has traced it, or not at all."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.forward_context import ForwardContext
from lingvo_pipe.layers.sequential import SequentialLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from tests.pipeline.example_layers import pipeline


class FunctionLayer(BaseLayer):
    """Calls a function that was added to it."""

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.AddFunction("change", lambda x: x)

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        return self.fns.change(x)


def _mean(outputs: tf.Tensor, targets: Any) -> NestedMap:
    return NestedMap(loss=(tf.reduce_mean(outputs), tf.constant(2.0)))


def _run(layer: PipeliningLayer, do_eval: bool = False) -> float:
    with ForwardContext(do_eval=do_eval):
        metrics = layer.ComputeMetrics(layer.theta, [tf.ones([4, 2])], None, _mean)
    return float(metrics.loss[0])


def test_before_the_first_run_one_may_take_the_place_of_another() -> None:
    layer = pipeline([FunctionLayer.Params()] * 2, 2, 2)
    for cell in layer.cells:
        cell.AddFunction("change", lambda x: 3.0 * x, replace=True)
    assert _run(layer) == 9.0


@pytest.mark.parametrize("name", ["change", "another"])
@pytest.mark.parametrize("do_eval", [False, True])
@pytest.mark.parametrize(
    ("params", "path"),
    [
        ({"cell_tpl": [FunctionLayer.Params()] * 2}, "pipe/cells_1"),
        ({"before_tpl": [FunctionLayer.Params()]}, "pipe/before_0"),
        (
            {"cell_tpl": [SequentialLayer.Params().Set(sub=[FunctionLayer.Params()])]},
            "pipe/cells_0/sub_0",
        ),
    ],
    ids=["one that shares a trace", "before", "within"],
)
def test_after_a_run_none_is_taken(
    params: dict[str, Any], path: str, do_eval: bool, name: str
) -> None:
    cells = params.get("cell_tpl", [FunctionLayer.Params()])
    layer = pipeline(cells, 1, 2, before_tpl=params.get("before_tpl", []))
    assert _run(layer, do_eval) == 1.0
    (found,) = (below for below in layer.Descendants() if below.path == path)
    with pytest.raises(ValueError, match=rf"\b{path}\b.*'{name}'.*\bAddFunction\b"):
        found.AddFunction(name, lambda x: 3.0 * x, replace=True)
    assert found.fns.keys() == {"change"}
    assert _run(layer, do_eval) == 1.0


def test_a_layer_that_failed_may_be_mended() -> None:
    layer = pipeline([FunctionLayer.Params()], 1, 2)
    layer.cells[0].AddFunction("change", lambda x: x.no_such, replace=True)
    with pytest.raises(AttributeError, match="no_such"):
        _run(layer)
    layer.cells[0].AddFunction("change", lambda x: 3.0 * x, replace=True)
    assert _run(layer) == 3.0
