"""Layers of the prologue are traced like cells, and obey their rules."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.core.nests import present
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.core.weights import WeightParams
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.execution import pipeline_function, prologue
from lingvo_pipe.pipeline.execution.prologue import Prologue, PrologueRun
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.pipeline.tracing import phases
from tests.pipeline.example_layers import (
    CountingLayer,
    gradients,
    loss_fn,
    pipeline,
    raw_values,
    state_batch,
)
from tests.pipeline.prologue_models import (
    DIM,
    MODELS,
    SumLayer,
    TwiceLayer,
    dense,
    make_batch,
    pipeline_of,
)
from tests.support.cases import fast_cases
from tests.support.errors import fails


def test_alike_layers_are_traced_once_for_training_and_once_for_evaluation() -> None:
    CountingLayer.traces = 0
    layer = pipeline(
        [dense()], 1, 4, before_tpl=[CountingLayer.Params().Set(dim=DIM)] * 5
    )
    counts = []
    for step in range(3):
        gradients(layer, make_batch(8), step=step)
        counts.append(CountingLayer.traces)
    for seed in range(2):
        with ForwardContext(do_eval=True):
            inputs, targets = state_batch(8, seed)
            layer.ComputeMetrics(raw_values(layer), inputs[:1], targets, loss_fn)
        counts.append(CountingLayer.traces)
    assert counts == [1, 1, 1, 2, 2]


def _run(layer: PipeliningLayer, inputs: list[Any], trains: bool) -> PrologueRun:
    """Runs the prologue alone."""
    theta = raw_values(layer).before
    return Prologue(layer.before, layer.spec).run(theta, tuple(inputs), trains)


@pytest.mark.parametrize(
    ("model", "do_eval"),
    fast_cases(
        itertools.product(MODELS, [False, True]),
        [*zip(MODELS, itertools.cycle([False, True]))],
    ),
)
def test_only_training_stashes_anything(model: str, do_eval: bool) -> None:
    layer, (inputs, _) = pipeline_of(model), MODELS[model][2](8)
    stashes = {}
    with ForwardContext(do_eval=do_eval, step=tf.constant(0, tf.int64)):
        for trains in (False, True):
            run = _run(layer, inputs, trains)
            assert run.stashed is not None
            stashes[trains] = [stash for stash in run.stashed[1].stashes if stash]
    assert not stashes[False]
    assert stashes[True]


def test_memory_of_the_prologue_is_on_the_first_device() -> None:
    """Weights, gradients, and the inputs and the tanh of each dense layer.

    The first cell's backward pass returns gradients for the prologue, too.
    """
    peaks = [
        pipeline([dense(), dense()], 2, 4, before_tpl=before).PeakBytes(
            *make_batch(8), loss_fn
        )
        for before in ([], [dense(), dense()])
    ]
    weights, stashed = DIM * DIM + DIM, 2 * 8 * DIM
    own, more = 2 * 4 * (2 * weights + stashed), peaks[1][0] - peaks[0][0]
    assert own <= more <= own + 2 * 4 * 2 * DIM
    assert peaks[1][1] == peaks[0][1]


def test_memory_is_that_of_the_weights_that_are_trained() -> None:
    """Once it was for fprop_dtype, for which the layers were traced again.

    Weights and their gradients are float32; their casts, once a step, are bfloat16.
    """
    weights, stashed = DIM * DIM + DIM, 2 * 8 * DIM
    layer = pipeline(
        [dense()], 1, 4, before_tpl=[dense()], dtype=tf.float32, fprop_dtype=tf.bfloat16
    )
    (x,), targets = make_batch(8)
    batch = [tf.cast(x, tf.bfloat16)], targets
    gradients(layer, batch)
    with ForwardContext(step=tf.constant(3, tf.int64)):
        layer.PeakBytes(*batch, loss_fn)
    (function,) = layer._prologue._functions.built
    assert function.num_bytes == (4 * 2 + 2) * weights + 2 * stashed


def _gradient_arrays(model: str, **params: Any) -> list[np.ndarray]:
    found = gradients(pipeline_of(model, **params), MODELS[model][2](8)).gradients
    return [g.numpy() for g in present(found)]


@pytest.mark.exhaustive
def test_the_prologue_may_be_compiled() -> None:
    arrays = [_gradient_arrays("sums", jit_compile=yes) for yes in (False, True)]
    for a, b in zip(*arrays, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


class NotForXlaLayer(BaseLayer):
    """A layer with strings."""

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        text = tf.strings.as_string(tf.stop_gradient(x))
        return x + tf.strings.to_number(text)


def test_the_prologue_is_compiled_where_cells_are() -> None:
    parts = [NotForXlaLayer.Params()]
    gradients(pipeline([dense()], 1, 2, before_tpl=parts), make_batch(8))
    layer = pipeline([dense()], 1, 2, before_tpl=parts, jit_compile=True)
    with pytest.raises(tf.errors.InvalidArgumentError, match="AsString"):
        gradients(layer, make_batch(8))


@pytest.mark.exhaustive
def test_functions_run_beside_their_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """TPUs need it: the stages are on devices 2 and 3, their loops on 0 and 1."""

    def beside(device: str) -> str:
        return device.replace("CPU:2", "CPU:0").replace("CPU:3", "CPU:1")

    params = {"devices": ["cpu:2", "cpu:3"], "jit_compile": True}
    expected = _gradient_arrays("tokens", **params)
    for module in (phases, prologue, pipeline_function):
        monkeypatch.setattr(module, "loop_device", beside)
    found = _gradient_arrays("tokens", **params)
    assert [x.tobytes() for x in expected] == [x.tobytes() for x in found]


class UnrulyLayer(BaseLayer):
    """Breaks a rule of layers in pipelines."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("rule", "", "The broken rule.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.CreateVariable("w", WeightParams([DIM]))

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> Any:
        if self.params.rule == "loses":
            self.AddLoss("energy", x[:, 0])
        if self.params.rule == "measures":
            self.AddMetric("mean", tf.reduce_mean(x), tf.constant(1.0))
        return x + self.vars.w if self.params.rule == "reads" else x


@pytest.mark.parametrize(
    ("rule", "path", "got"),
    [
        (
            "reads",
            "FProp of the UnrulyLayer at pipe/before_1",
            "direct reads of the variables ['pipe/before_1/w']",
        ),
        ("loses", "pipe/before_1", ["energy"]),
        ("measures", "pipe/before_1", ["mean"]),
    ],
)
def test_a_breach_is_reported_with_the_layer(rule: str, path: str, got: Any) -> None:
    parts = [dense(), UnrulyLayer.Params().Set(rule=rule)]
    layer, batch = pipeline([dense()], 1, 2, before_tpl=parts), make_batch(8)
    with fails(path=path, got=got):
        gradients(layer, batch)
    with ForwardContext(do_eval=True), fails(path=path, got=got):
        layer.ComputeMetrics(layer.theta, *batch, loss_fn)


def test_inputs_must_have_static_shapes() -> None:
    layer = pipeline_of("sums")

    @tf.function(input_signature=[tf.TensorSpec([None, DIM])], autograph=False)
    def outputs(x: tf.Tensor) -> tf.Tensor:
        return layer.FProp(layer.theta, x)

    with fails(path="pipe", got="float32 (None, 6)"):
        outputs(tf.ones([8, DIM]))


class FailingLayer(BaseLayer):
    """Fails forward for inputs above 2, backward for any above 1."""

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        tf.debugging.assert_less(x, 2.0, message="above_2_forward")

        @tf.custom_gradient
        def pass_on(y: tf.Tensor) -> Any:
            def grad(gradient: tf.Tensor) -> tf.Tensor:
                wrong = tf.where(y > 1.0, np.nan, gradient)
                return tf.debugging.check_numerics(wrong, "above_1_backward")

            return tf.identity(y), grad

        return pass_on(x)


@pytest.mark.parametrize(("scale", "direction"), [(3.0, "forward"), (1.5, "backward")])
def test_an_operation_that_fails_is_found(scale: float, direction: str) -> None:
    parts = [TwiceLayer.Params(), SumLayer.Params(), FailingLayer.Params()]
    layer, batch = pipeline([dense()], 1, 2, before_tpl=parts), make_batch(8)
    batch[0][:] = [tf.fill([8, DIM], scale)]
    layer.vars.before[0].shift.assign(-layer.vars.before[0].frozen - scale)
    step_number = tf.constant(3, tf.int64)
    failure = rf"\babove_\d_{direction}\b"
    named = rf"(?s)\b{direction}\b.*\bpipe/before_2\b.*{failure}"
    step = tf.function(lambda: gradients(layer, batch), autograph=False)
    with pytest.raises(tf.errors.InvalidArgumentError, match=failure):
        step()
    with (
        ForwardContext(step=step_number),
        pytest.raises(tf.errors.InvalidArgumentError, match=named),
    ):
        layer.Diagnose(raw_values(layer), *batch, loss_fn)
    batch[0][:] = [tf.zeros([8, DIM])]
    with ForwardContext(step=step_number):
        layer.Diagnose(raw_values(layer), *batch, loss_fn)
