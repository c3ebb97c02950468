from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.batch_norm import BatchNormLayer
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.forward_context import ForwardContext
from lingvo_pipe.layers.weight_params import WeightParams
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.pipeline_function import PipelineFunction
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.pipeline.schedule import Schedule, gpipe
from tests.pipeline.example_layers import (
    gradients,
    image_batch,
    image_cells,
    loss_fn,
    pipeline,
    raw_values,
    state_batch,
    state_cells,
)


def test_weights_lie_on_the_device_of_their_stage() -> None:
    layer = pipeline(state_cells(), [1, 3, 6], 2)
    for i, cell in enumerate(layer.cells):
        stage = next(s for s, end in enumerate([1, 3, 6]) if i < end)
        assert layer.stage_of_cell(i) == stage
        for variable in cell.VariablePaths().values():
            assert variable.device == layer.devices[stage]
    assert len(set(layer.devices)) == layer.num_stages == 3


def test_what_is_not_trained_has_no_gradient() -> None:
    layer = pipeline(image_cells(), 2, 2)
    result = gradients(layer, image_batch(4))
    norm = result.gradients.cells[0].sub[1]
    assert norm.moving_mean is None
    assert norm.gamma is not None
    totals = result.accumulated.cells[0].sub[1]
    assert float(totals.count) == 4 * 5 * 4


class CountingLayer(BaseLayer):
    """A dense layer that counts how often it is traced."""

    traces = 0

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.CreateVariable("w", WeightParams([3, 3]))

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        CountingLayer.traces += 1
        return tf.matmul(x, theta.w)


def test_alike_layers_are_traced_once_however_many() -> None:
    targets = NestedMap(label=tf.zeros([4], tf.int32), weight=tf.ones([4]))
    traces = []
    for num_layers in (4, 12):
        CountingLayer.traces = 0
        layer = pipeline([CountingLayer.Params()] * num_layers, 4, 2)
        gradients(layer, ([tf.ones([4, 3])], targets))
        traces.append(CountingLayer.traces)
    assert traces[0] == traces[1] == 1


def test_another_run_of_the_same_shapes_traces_nothing() -> None:
    layer, batch = pipeline([CountingLayer.Params()] * 2, 2, 2), state_batch(4)
    batch[0][:] = [tf.ones([4, 3])]
    batch[1].label = tf.zeros([4], tf.int32)
    gradients(layer, batch, step=1)
    CountingLayer.traces = 0
    gradients(layer, batch, step=2)
    assert CountingLayer.traces == 0


class ScaleLayer(BaseLayer):
    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        return self.fns.scale(x)


def test_layers_with_other_functions_are_not_alike() -> None:
    layer = pipeline([ScaleLayer.Params()] * 3, 3, 2)
    for factor, cell in zip((2, 3, 5), layer.cells, strict=True):
        cell.AddFunction("scale", lambda x, factor=factor: factor * x)
    assert float(layer.FProp(layer.theta, tf.ones([2, 1]))[0, 0]) == 30.0


class FailingLayer(BaseLayer):
    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        tf.debugging.assert_less(tf.reduce_max(x), 0.0, message="the middle stage")
        return x


def test_an_error_within_a_stage_ends_the_step_instead_of_hanging() -> None:
    dense = FCLayer.Params().Set(input_dim=3, output_dim=3, has_bias=False)
    layer = pipeline([dense, FailingLayer.Params(), dense.Copy()], 3, 2)
    layer.vars.cells[0].w.assign(tf.ones([3, 3]))
    batch = state_batch(4)
    batch[0][:] = [tf.ones([4, 3])]
    with pytest.raises(tf.errors.InvalidArgumentError, match="the middle stage"):
        gradients(layer, batch)


def test_a_gradient_through_a_forward_pass_is_refused() -> None:
    """Rather than being None, or wrong."""
    layer, (inputs, targets) = pipeline(state_cells(), 2, 2), state_batch(4)
    step = tf.constant(0, tf.int64)
    with ForwardContext(step=step), tf.GradientTape(persistent=True) as tape:
        outputs = layer.FProp(layer.theta, *inputs)
        metrics = layer.ComputeMetrics(layer.theta, inputs, targets, loss_fn)
    for result in (outputs, metrics.loss[0]):
        with pytest.raises(ValueError, match="Use ComputeGradients"):
            tape.gradient(result, layer.vars.cells[1].dense.w)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"cell_tpl": []}, r"at least one layer's Params; that of pipe is \[\]"),
        ({"num_micro_batches": 0}, "integer of at least 1; pipe has 0"),
        ({"num_micro_batches": 2.0}, "integer of at least 1; pipe has 2.0"),
        ({"splits": "2"}, "or a list of the ends of the stages; got '2'"),
        ({"splits": True}, "or a list of the ends of the stages; got True"),
        ({"splits": 2, "devices": "cpu:0,cpu:1"}, "must be a list of names"),
        ({"splits": 7}, "between 1 and the number of layers, 6; got 7"),
        ({"splits": [2, 2, 6]}, r"none empty.* got \[2, 2, 6\]"),
        ({"splits": 3, "devices": ["/device:CPU:0"]}, "3 stages and 1 devices"),
    ],
)
def test_impossible_params_are_refused(params: dict[str, Any], words: str) -> None:
    p = PipeliningLayer.Params().Set(name="pipe", cell_tpl=state_cells())
    with pytest.raises(ValueError, match=words):
        p.Set(**params).Instantiate()


def test_stages_of_equal_cells_keep_their_own_statistics() -> None:
    """Alike layers share a function, not what they accumulate."""
    norm = BatchNormLayer.Params().Set(dim=3)
    layer = pipeline(
        [norm, FCLayer.Params().Set(input_dim=3, output_dim=3), norm], 3, 2
    )
    batch = state_batch(4)
    batch[0][:] = [tf.random.stateless_normal([4, 3], [1, 2]) + 5.0]
    batch[1].label = tf.zeros([4], tf.int32)
    totals = gradients(layer, batch).accumulated.cells
    assert abs(float(totals[0].sum[0])) > 4.0
    assert not bool(tf.reduce_all(totals[0].sum == totals[2].sum))


def test_the_graph_grows_neither_with_m_nor_within_alike_layers() -> None:
    sizes = {}
    for num_layers, num_micro_batches in [(4, 2), (4, 16), (12, 2)]:
        layer = pipeline([CountingLayer.Params()] * num_layers, 2, num_micro_batches)
        thetas = [raw_values(layer).cells[a::2] for a in range(2)]
        function = PipelineFunction(
            gpipe(2, num_micro_batches),
            [layer.cells[a::2] for a in range(2)],
            layer.devices,
            NestedMap(
                thetas=thetas,
                step=None,
                first_example=tf.constant(0, tf.int64),
                inputs=(tf.ones([num_micro_batches, 2, 3]),),
                targets=NestedMap(
                    label=tf.zeros([num_micro_batches, 2], tf.int32),
                    weight=tf.ones([num_micro_batches, 2]),
                ),
            ),
            loss_fn,
            do_eval=False,
            name="pipe",
        )
        graph = function.graph.as_graph_def()
        loops = [node for node in graph.node if node.op == "While"]
        assert [loop.device for loop in loops] == layer.devices
        layer_bodies = [f for f in graph.library.function if "MatMul" in str(f)]
        sizes[num_layers, num_micro_batches] = (
            len(graph.node) if num_layers == 4 else None,
            len(layer_bodies),
        )
    assert sizes[4, 2] == sizes[4, 16]
    assert sizes[4, 2][1] == sizes[12, 2][1]


def test_a_schedule_is_checked_before_anything_is_built() -> None:
    layer = pipeline([CountingLayer.Params()], 1, 2)
    with pytest.raises(ValueError, match="This schedule can't be run"):
        PipelineFunction(
            Schedule(1, 2, (gpipe(1, 2).columns[0][:-1],)),
            [layer.cells],
            layer.devices,
            NestedMap(),
            loss_fn,
            do_eval=False,
            name="pipe",
        )
