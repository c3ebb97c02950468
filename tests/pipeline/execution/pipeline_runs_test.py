"""Calls of a pipeline: where, how often, and with which arguments."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.core import trees
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core import forward_context
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.dropout import DropoutLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.execution.pipeline_runs import check_theta
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from tests.pipeline.example_layers import (
    gradients,
    loss_fn,
    pipeline,
    plain_outputs,
    raw_values,
    state_batch,
)


def _layer(num_stages: int = 4, seed: int = 0) -> PipeliningLayer:
    dense = FCLayer.Params().Set(input_dim=6, output_dim=6, random_seed=seed)
    return pipeline([dense] * 4, num_stages, 4)


def _one_after_another(layers: list, batches: tf.Tensor) -> tf.Tensor:
    runs = [
        layer.FProp(layer.theta, x) for x in tf.unstack(batches) for layer in layers
    ]
    return tf.stack(runs)


def _loop(layers: list, batches: tf.Tensor) -> tf.Tensor:
    (layer,) = layers
    return tf.map_fn(lambda x: layer.FProp(layer.theta, x), batches)


@pytest.mark.parametrize(
    ("num_layers", "run"),
    [(1, _one_after_another), (2, _one_after_another), (1, _loop)],
)
def test_runs_within_one_step_do_not_mix(num_layers: int, run: Callable) -> None:
    """Not even of layers of one name."""
    layers = [_layer(seed=i) for i in range(num_layers)]
    batches = tf.random.stateless_normal([8, 8, 6], [1, 2])
    function = tf.function(lambda x: run(layers, x), autograph=False)
    want = [plain_outputs(layer, [x]) for x in batches for layer in layers]
    for _ in range(5):
        np.testing.assert_allclose(function(batches), want, rtol=1e-5, atol=1e-5)


def test_a_run_may_need_what_the_last_one_gave() -> None:
    """It must not hold the mutex before it can run."""
    layer, x = _layer(), tf.random.stateless_normal([8, 6], [1, 2])

    @tf.function(autograph=False)
    def run(x: tf.Tensor) -> tf.Tensor:
        for _ in range(6):
            x = layer.FProp(layer.theta, x)
        return tf.while_loop(
            lambda i, x: i < 6,
            lambda i, x: (i + 1, layer.FProp(layer.theta, x)),
            [0, x],
        )[1]

    got = run(x)
    for _ in range(12):
        x = plain_outputs(layer, [x])
    np.testing.assert_allclose(got, x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("train", [True, False])
def test_no_weight_or_gradient_leaves_its_device(train: bool) -> None:
    """Not even in the step's graph around the loops."""
    layer, (inputs, targets) = _layer(), state_batch(8)

    @tf.function(autograph=False)
    def run(x: tf.Tensor) -> Any:
        if train:
            return gradients(layer, ([x], targets)).gradients
        theta = raw_values(layer)
        return layer.ComputeMetrics(theta, [x], targets, loss_fn)

    graph = run.get_concrete_function(inputs[0]).graph
    expected = {layer.devices[layer.stage_of_cell(i)] for i in range(len(layer.cells))}
    passed = set()
    for op in graph.get_operations():
        large = [x for x in op.inputs if x.shape.num_elements() >= 36]
        if op.type in ("IdentityN", "StopGradient") and large:
            assert {x.op.device for x in large} <= {op.device, ""}
            passed.add(op.device)
    assert passed - {""} == expected


def test_arrays_numbers_variables_and_plain_dicts_may_replace_tensors() -> None:
    layer, ([x, _], targets) = _layer(), state_batch(8)
    want = gradients(layer, ([x], targets), step=3)
    arrays = targets.Transform(lambda t: t.numpy())
    for theta in (layer.vars, trees.convert_dicts(layer.vars, dict)):
        with ForwardContext(step=3):
            got = layer.ComputeGradients(theta, (x.numpy(),), arrays, loss_fn)
        del got.times
        for a, b in zip(tf.nest.flatten(got), tf.nest.flatten(want), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("inputs", "pattern"),
    [
        (lambda: tf.zeros([4, 6]), r"^pipe\b.*\binputs\b.*\bEagerTensor\b"),
        (lambda: NestedMap(x=tf.zeros([4, 6])), r"^pipe\b.*\binputs\b.*\bNestedMap\b"),
        (lambda: [tf.ragged.constant([[1], [2, 3]])], r"\bpipe\b.*\bRaggedTensor\b"),
        (lambda: [tf.sparse.eye(4)], r"\bpipe\b.*\bSparseTensor\b"),
    ],
)
def test_other_inputs_are_refused(inputs: Callable, pattern: str) -> None:
    layer, (_, targets) = _layer(), state_batch(4)
    with pytest.raises(ValueError, match=pattern):
        layer.ComputeGradients(raw_values(layer), inputs(), targets, loss_fn)


def test_theta_of_another_structure_is_refused() -> None:
    layer, ([x, _], targets) = _layer(), state_batch(4)
    theta = NestedMap(cells=raw_values(layer).cells[1:])
    with pytest.raises(ValueError, match=r"\bpipe\b.*\btheta\b.*\bcells\[3\]\.w\b"):
        layer.ComputeGradients(theta, [x], targets, loss_fn)


def test_examples_are_counted_from_the_contexts_first() -> None:
    layer = pipeline([DropoutLayer.Params().Set(keep_prob=0.5)], 1, 2)
    with ForwardContext(step=1, first_example=8):
        got = layer.FProp(layer.theta, tf.ones([4, 9]))
        want = plain_outputs(layer, [tf.ones([4, 9])])
    np.testing.assert_array_equal(got, want)


def test_a_new_loss_function_in_each_call_is_warned_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layer, ([x, _], targets) = _layer(1), state_batch(4)
    logged: list[str] = []
    monkeypatch.setattr(
        tf.get_logger(), "warning", lambda text, *args: logged.append(text % args)
    )
    with ForwardContext(do_eval=True):
        for _ in range(18):
            layer.ComputeMetrics(layer.theta, [x], targets, lambda x, t: loss_fn(x, t))
    assert len(logged) == 1
    assert re.search(r"\bpipe\b.*\b16\b", logged[0])


def test_graphs_are_not_optimized_whoever_made_the_devices() -> None:
    """Once only initialize_devices switched the graph optimizer off."""
    options = tf.config.optimizer
    options.set_experimental_options({"disable_meta_optimizer": False})
    _layer(1)
    assert options.get_experimental_options()["disable_meta_optimizer"]


def test_runs_of_different_kinds_are_independent() -> None:
    """Forward or training, in evaluation or not, in any order."""

    def loss(x: tf.Tensor, targets: NestedMap) -> NestedMap:
        factor = 0.5 if forward_context.current_context().do_eval else 1.0
        return NestedMap(loss=(factor * tf.reduce_mean(x), 1.0))

    def value(layer: PipeliningLayer, kind: str, do_eval: bool) -> tf.Tensor:
        theta = layer.theta
        with ForwardContext(do_eval=do_eval, step=1):
            if kind == "FProp":
                return tf.reduce_mean(layer.FProp(theta, tf.ones([4, 6])))
            run = getattr(layer, kind)(theta, [tf.ones([4, 6])], None, loss)
        if kind == "ComputeMetrics":
            return run.loss[0]
        assert run.gradients.cells[0].w is not None
        return run.metrics.loss[0]

    def new_layer() -> PipeliningLayer:
        dense = FCLayer.Params().Set(input_dim=6, output_dim=6)
        return pipeline([dense, DropoutLayer.Params().Set(keep_prob=0.5)], 2, 2)

    kinds = [
        (kind, do_eval)
        for kind in ("ComputeMetrics", "ComputeGradients", "FProp")
        for do_eval in (False, True)
    ]
    layer = new_layer()
    got = {kind: float(value(layer, *kind)) for kind in kinds}
    assert got == {kind: float(value(new_layer(), *kind)) for kind in kinds}
    for do_eval, factor in ((False, 1.0), (True, 0.5)):
        mean = got["FProp", do_eval]
        assert got["ComputeMetrics", do_eval] == pytest.approx(factor * mean)
        assert got["ComputeGradients", do_eval] == pytest.approx(factor * mean)
    assert got["FProp", False] != got["FProp", True]


class PipelineHolder(BaseLayer):
    """A layer with a pipeline in it."""

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.CreateChild("inner", _params())

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        return self.inner.FProp(theta.inner, x)


def _params() -> InstantiableParams:
    dense = FCLayer.Params().Set(input_dim=6, output_dim=6)
    return PipeliningLayer.Params().Set(cell_tpl=[dense])


@pytest.mark.parametrize(
    ("cell", "pattern"),
    [
        (_params, r"\bpipe/cells_1\b.*\bpipe/cells_1\b"),
        (PipelineHolder.Params, r"\bpipe/cells_1/inner\b.*\bpipe/cells_1\b"),
    ],
)
def test_a_pipeline_in_a_cell_is_refused(cell: Callable, pattern: str) -> None:
    dense = FCLayer.Params().Set(input_dim=6, output_dim=6)
    with pytest.raises(ValueError, match=rf"\bcell_tpl\b.*{pattern}"):
        pipeline([dense, cell()], 2, 2)
    pattern = pattern.replace("cells_1", "before_0")
    with pytest.raises(ValueError, match=rf"\bcell_tpl\b.*{pattern}"):
        pipeline([dense, dense.Copy()], 2, 2, before_tpl=[cell()])


def test_no_iteration_ends_before_its_messages_are_sent() -> None:
    """TensorFlow might drop operations that nothing in a function depends on."""
    layer = _layer(2)
    layer.FProp(layer.theta, tf.ones([8, 6]))
    (function,) = layer.functions
    num_sends = 0
    for branch in function.graph.as_graph_def().library.function:
        inputs = {name for node in branch.node_def for name in node.input}
        sends = [node.name for node in branch.node_def if node.op == "Send"]
        assert all(f"^{send}" in inputs for send in sends)
        num_sends += len(sends)
    assert num_sends == 1


def _variables() -> NestedMap:
    cells = [NestedMap(w=tf.Variable(tf.ones([2, 3])), b=tf.Variable(tf.ones([3])))]
    return NestedMap(before=[], cells=cells + [NestedMap()] + cells * 4)


def _theta() -> NestedMap:
    return tf.nest.map_structure(tf.convert_to_tensor, _variables())


def test_values_of_the_variables_fit() -> None:
    check_theta(_theta(), _variables(), "pipe")
    check_theta(_variables(), _variables(), "pipe")


def _without_a_weight(theta: NestedMap) -> Any:
    del theta.cells[2].w


def _with_another(theta: NestedMap) -> Any:
    theta.cells[0].v = theta.cells[0].pop("w")


def _transposed(theta: NestedMap) -> Any:
    theta.cells[3].w = tf.transpose(theta.cells[3].w)


def _cells_alone(theta: NestedMap) -> Any:
    return theta.cells


def _tuple(theta: NestedMap) -> Any:
    theta.cells = tuple(theta.cells)


def _without_an_empty_list(theta: NestedMap) -> Any:
    del theta.before


def _absent(theta: NestedMap) -> Any:
    theta.cells[3].b = None


@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        (_without_a_weight, r"\bpipe\b.*\bcells\[2\]\.w\b"),
        (_with_another, r"\bpipe\b.*\bcells\[0\]\.w\b.*\bcells\[0\]\.v\b"),
        (_transposed, r"\bcells\[3\]\.w\b.*\(3, 2\).*\(2, 3\)"),
        (_cells_alone, r"\bcells\[0\]\.b\b.*\bcells\[2\]\.b\D*\b17\b"),
        (_tuple, r"\bpipe\b.*\btuple\b"),
        (_without_an_empty_list, r"\bpipe\b.*\bempty\b"),
        (_absent, r"\bcells\[3\]\.b\b.*\bNone\b"),
    ],
)
def test_the_first_differences_are_reported(
    change: Callable[[NestedMap], Any], pattern: str
) -> None:
    theta = _theta()
    changed = change(theta)
    with pytest.raises(ValueError, match=pattern) as caught:
        check_theta(theta if changed is None else changed, _variables(), "pipe")
    assert len(str(caught.value)) < 300
