"""Properties of PipeliningLayer and its errors."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.batch_norm import BatchNormLayer
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.sequential import SequentialLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.pipeline.schedules.by_rule import gpipe, local
from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.schedules.several_steps import several_steps
from tests.pipeline.example_layers import (
    gradients,
    image_batch,
    image_cells,
    loss_fn,
    pipeline,
    plain_outputs,
    state_batch,
    state_cells,
)
from tests.support.cases import exhaustive
from tests.support.errors import fails


def test_weights_live_on_the_device_of_their_stage() -> None:
    layer = pipeline(state_cells(), [1, 3, 6], 2)
    for i, cell in enumerate(layer.cells):
        stage = next(s for s, end in enumerate([1, 3, 6]) if i < end)
        assert layer.stage_of_cell(i) == stage
        for variable in cell.VariablePaths().values():
            assert variable.device == layer.devices[stage]
    assert len(set(layer.devices)) == layer.num_stages == 3
    for i in (-1, 6):
        with fails(path="pipe.stage_of_cell", got=i):
            layer.stage_of_cell(i)


def test_untrained_weights_have_no_gradient() -> None:
    layer = pipeline(image_cells(num_convolutions=1), 2, 2)
    result = gradients(layer, image_batch(4))
    norm = result.gradients.cells[0].sub[1]
    assert norm.moving_mean is None
    assert norm.gamma is not None
    accumulators = result.accumulated.cells[0].sub[1]
    assert float(accumulators.count) == 4 * 5 * 4


class ScaleLayer(BaseLayer):
    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        return self.fns.scale(x)


def test_layers_with_other_functions_are_not_alike() -> None:
    layer = pipeline([ScaleLayer.Params()] * 3, 3, 2)
    for factor, cell in zip((2, 3, 5), layer.cells, strict=True):
        cell.AddFunction("scale", lambda x, factor=factor: factor * x)
    assert float(layer.FProp(layer.theta, tf.ones([2, 1]))[0, 0]) == 30.0


def _ten_times(x: tf.Tensor) -> tf.Tensor:
    return 10.0 * x


class SometimesScaleLayer(BaseLayer):
    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        return self.fns.scale(x) if "scale" in self.fns else x + 1.0


def test_layers_whose_parts_have_other_functions_are_not_alike() -> None:
    """Once only the set of functions counted, and not their layers."""
    parts = [SometimesScaleLayer.Params()] * 2
    layer = pipeline([SequentialLayer.Params().Set(sub=parts)] * 2, 2, 2)
    for index, cell in enumerate(layer.cells):
        cell.sub[index].AddFunction("scale", _ten_times)
    assert float(layer.FProp(layer.theta, tf.ones([2, 1]))[0, 0]) == 120.0


class AttributeLayer(BaseLayer):
    """Multiplies by a factor from its name, which an attribute holds in some form."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("form", None, "A function of the factor.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.held = self.params.form(float(self.params.name[-1]) + 1.0)

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        return x * np.sum(tf.nest.flatten(self.held), dtype=np.float32)


def _as_list(factor: float) -> list[float]:
    return [factor, 0.0]


def _as_map(factor: float) -> dict[str, list[float]]:
    return {"a": [0.0], "b": [factor]}


@pytest.mark.parametrize(
    "form", [np.array, _as_map, *map(exhaustive, [float, _as_list])]
)
def test_layers_with_different_attributes_are_not_alike(form: Any) -> None:
    """Once all computed with the attributes of the first."""
    layer = pipeline([AttributeLayer.Params().Set(form=form)] * 3, 3, 2)
    assert float(layer.FProp(layer.theta, tf.ones([2, 1]))[0, 0]) == 6.0
    (function,) = layer.functions
    traces = function._traced.traces
    assert len({id(trace) for trace in traces}) == 3


def test_layers_with_equal_attributes_are_alike() -> None:
    cells = [AttributeLayer.Params().Set(form=lambda factor: np.array([2.0, 3.0]))] * 3
    layer = pipeline(cells, 3, 2)
    assert float(layer.FProp(layer.theta, tf.ones([2, 1]))[0, 0]) == 125.0
    (function,) = layer.functions
    assert len({id(trace) for trace in function._traced.traces}) == 1


class FailingLayer(BaseLayer):
    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        tf.debugging.assert_less(tf.reduce_max(x), 0.0, message="in_the_middle")
        return x


@pytest.mark.parametrize("num_stages", [exhaustive(1), 3])
def test_an_operation_that_fails_is_found(num_stages: int) -> None:
    """TensorFlow may report an operation that it cancelled after the failure."""
    dense = FCLayer.Params().Set(input_dim=3, output_dim=3, has_bias=False)
    cells = [dense, FailingLayer.Params(), dense.Copy()]
    layer = pipeline(cells, num_stages, 2)
    layer.vars.cells[0].w.assign(tf.ones([3, 3]))
    targets = state_batch(4)[1]
    batch = [tf.ones([4, 3])], targets
    stage = layer.stage_of_cell(1)
    position = rf"\bforward\b.*\bpipe/cells_1 .*stage {stage}\b.*micro-batch 0\b"
    pattern = rf"(?s){position}.*\bin_the_middle\b"
    with pytest.raises(tf.errors.InvalidArgumentError, match=pattern):
        gradients(layer, batch)
    with pytest.raises(tf.errors.InvalidArgumentError, match=pattern):
        layer(*batch[0])
    with pytest.raises(tf.errors.OpError):
        tf.function(lambda: layer(*batch[0]), autograph=False)()
    with (
        ForwardContext(step=tf.constant(0, tf.int64)),
        pytest.raises(tf.errors.InvalidArgumentError, match=pattern),
    ):
        layer.Diagnose(layer.vars, *batch, loss_fn)
    layer.vars.cells[0].w.assign(-tf.ones([3, 3]))
    gradients(layer, batch)
    with ForwardContext(do_eval=True):
        layer.Diagnose(layer.vars, *batch, loss_fn)


@pytest.mark.parametrize(
    ("values", "prologue"),
    [("theta", 0), ("vars", 2), exhaustive("theta", 2), exhaustive("vars", 0)],
)
def test_a_gradient_through_metrics_is_refused(values: str, prologue: int) -> None:
    """It would be None, or wrong."""
    dense = FCLayer.Params().Set(input_dim=6, output_dim=6)
    cells = [*[dense] * 3, dense.Copy().Set(output_dim=3)]
    layer = pipeline(cells[prologue:], 2, 2, before_tpl=cells[:prologue])
    (x, _), targets = state_batch(4)
    inputs = [x]
    weight = [*layer.vars.before, *layer.vars.cells][1].w
    step = tf.constant(0, tf.int64)
    with ForwardContext(step=step), tf.GradientTape(persistent=True) as tape:
        theta = getattr(layer, values)
        metrics = layer.ComputeMetrics(theta, inputs, targets, loss_fn)
        trained = layer.ComputeGradients(theta, inputs, targets, loss_fn)
    for result in (metrics.loss[0], trained.metrics.loss[0]):
        with pytest.raises(UserValueError, match="^ComputeMetrics.*ComputeGradients"):
            tape.gradient(result, weight)


def test_stages_of_equal_cells_keep_their_own_statistics() -> None:
    """Alike layers share a function, but not their accumulators."""
    norm = BatchNormLayer.Params().Set(dim=3)
    layer = pipeline(
        [norm, FCLayer.Params().Set(input_dim=3, output_dim=3), norm], 3, 2
    )
    batch = state_batch(4)
    batch[0][:] = [tf.random.stateless_normal([4, 3], [1, 2]) + 5.0]
    batch[1].label = tf.zeros([4], tf.int32)
    accumulators = gradients(layer, batch).accumulated.cells
    assert abs(float(accumulators[0].sum[0])) > 4.0
    assert not bool(tf.reduce_all(accumulators[0].sum == accumulators[2].sum))


@functools.cache
def _three_stages() -> PipeliningLayer:
    """Returns a pipeline that has not run."""
    return pipeline(image_cells(), 3, 4)


CUT_OFF = Schedule(3, 4, tuple(column[:-1] for column in gpipe(3, 4).columns))
IDLE = dataclasses.replace(gpipe(3, 4), columns=(*gpipe(3, 4).columns, ()))


@pytest.mark.parametrize(
    "schedule",
    [
        gpipe(2, 4),
        gpipe(3, 2),
        CUT_OFF,
        "1f1b",
        gpipe(3, 4).forward_part(),
        # Once the loops waited forever, because the model has no blocks.
        local(3, 4, block_boundaries=[0]),
        several_steps(gpipe(3, 2), 2),
    ],
)
def test_a_schedule_for_other_stages_is_refused(schedule: Any) -> None:
    with fails(path="pipe.schedule"):
        gradients(_three_stages(), image_batch(8), schedule=schedule)


def test_a_device_without_operations_is_refused() -> None:
    with fails():
        gradients(_three_stages(), image_batch(8), schedule=IDLE)


def test_gradients_may_be_computed_in_evaluation() -> None:
    """They use the moving averages and do not change them."""
    layer = pipeline(image_cells(num_convolutions=1), 2, 2)
    inputs, targets = image_batch(8)
    with ForwardContext(do_eval=True), tf.GradientTape() as tape:
        result = layer.ComputeGradients(layer.vars, inputs, targets, loss_fn)
        loss = loss_fn(plain_outputs(layer, inputs), targets).loss[0]
    assert result.accumulated is None
    weight = layer.vars.cells[0].sub[0].w
    want = tape.gradient(loss, weight)
    np.testing.assert_allclose(result.gradients.cells[0].sub[0].w, want, atol=1e-6)
