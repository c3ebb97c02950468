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
from lingvo_pipe.layers.dense import ActivationLayer, FCLayer
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
from tests.support.cases import exhaustive
from tests.support.errors import fails


def _layer(num_stages: int = 2, seed: int = 0) -> PipeliningLayer:
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
    [exhaustive(1, _one_after_another), (2, _one_after_another), (1, _loop)],
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
    ("inputs", "path", "got"),
    [
        (lambda: tf.zeros([4, 6]), "pipe.inputs", "EagerTensor"),
        (lambda: NestedMap(x=tf.zeros([4, 6])), "pipe.inputs", "NestedMap"),
        (lambda: [tf.ragged.constant([[1], [2, 3]])], "pipe", "RaggedTensor"),
        (lambda: [tf.sparse.eye(4)], "pipe", "SparseTensor"),
    ],
)
def test_other_inputs_are_refused(inputs: Callable, path: str, got: str) -> None:
    layer, (_, targets) = _layer(), state_batch(4)
    with fails(path=path, got=got):
        layer.ComputeGradients(raw_values(layer), inputs(), targets, loss_fn)


def test_theta_of_another_structure_is_refused() -> None:
    layer, ([x, _], targets) = _layer(), state_batch(4)
    theta = NestedMap(cells=raw_values(layer).cells[1:])
    with fails(path="pipe.theta"):
        layer.ComputeGradients(theta, [x], targets, loss_fn)


def test_examples_are_counted_from_the_contexts_first() -> None:
    layer = pipeline([DropoutLayer.Params().Set(keep_prob=0.5)], 1, 2)
    with ForwardContext(step=1, first_example=8):
        got = layer.FProp(layer.theta, tf.ones([4, 9]))
        want = plain_outputs(layer, [tf.ones([4, 9])])
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("in_prologue", [False, True])
def test_a_run_that_draws_is_the_only_one_in_its_context(in_prologue: bool) -> None:
    """Once a second run repeated the numbers of the first."""
    dropout = DropoutLayer.Params().Set(keep_prob=0.5)
    cell = ActivationLayer.Params() if in_prologue else dropout
    layer = pipeline([cell], 1, 2, before_tpl=[dropout] * in_prologue)
    x = tf.ones([4, 9])
    with ForwardContext(step=1, first_example=0):
        layer.FProp(layer.theta, x)
        with fails(path="pipe", got="another"):
            layer.FProp(layer.theta, x)
    with ForwardContext(do_eval=True):
        for _ in range(2):
            np.testing.assert_array_equal(layer.FProp(layer.theta, x), x)


@pytest.mark.parametrize("in_prologue", [False, True])
def test_a_context_that_micro_batches_do_not_have_is_refused(in_prologue: bool) -> None:
    """Once padding rows counted as examples, and all tokens could be predicted."""
    cells = [ActivationLayer.Params()]
    layer = pipeline(cells, 1, 2, before_tpl=cells * in_prologue)
    for context in (
        ForwardContext(num_examples=tf.constant(3)),
        ForwardContext(do_eval=True, vocabulary_size=5),
    ):
        with context, fails(path="pipe"):
            layer.FProp(layer.theta, tf.ones([4, 9]))


@pytest.mark.exhaustive
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
    """Forward or training, in evaluation or not, in any order.

    Outputs are the same as of a pipeline that ran nothing else. The other results
    follow from them.
    """

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
    outputs = [kind for kind in kinds if kind[0] == "FProp"]
    alone = {kind: float(value(new_layer(), *kind)) for kind in outputs}
    assert alone == {kind: got[kind] for kind in outputs}
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
    ("cell", "inner"), [(_params, ""), (PipelineHolder.Params, "/inner")]
)
def test_a_pipeline_in_a_cell_is_refused(cell: Callable, inner: str) -> None:
    dense = FCLayer.Params().Set(input_dim=6, output_dim=6)
    with fails(path="pipe.cell_tpl", got=f"pipe/cells_1{inner} in pipe/cells_1"):
        pipeline([dense, cell()], 2, 2)
    with fails(path="pipe.cell_tpl", got=f"pipe/before_0{inner} in pipe/before_0"):
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


def _replaced(index: int, **weights: Any) -> Callable[[NestedMap], None]:
    return lambda theta: theta.cells[index].update(weights)


def _without(get: Callable[[NestedMap], NestedMap], name: str) -> Callable:
    return lambda theta: get(theta).pop(name)


@pytest.mark.parametrize(
    ("change", "texts"),
    [
        (_without(lambda theta: theta.cells[2], "w"), ["cells[2].w is missing"]),
        (_replaced(0, v=1.0), ["cells[0].v is unknown"]),
        (_replaced(3, w=np.ones([3, 2])), ["cells[3].w has (3, 2), not (2, 3)"]),
        (_replaced(3, b=None), ["cells[3].b is None"]),
        (lambda theta: theta.update(cells=[]), ["cells[0].b", "and 7 more"]),
        (lambda theta: theta.update(cells=tuple(theta.cells)), ["a list is a tuple"]),
        (_without(lambda theta: theta, "before"), ["an empty structure is missing"]),
    ],
)
def test_the_first_differences_are_reported(
    change: Callable[[NestedMap], Any], texts: list[str]
) -> None:
    theta = _theta()
    change(theta)
    with fails(path="pipe.theta") as info:
        check_theta(theta, _variables(), "pipe")
    assert all(text in info.value.got for text in texts)
    assert len(str(info.value)) < 300
