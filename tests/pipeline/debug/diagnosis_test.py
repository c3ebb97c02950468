"""Diagnosis finds the operation that fails, or the first value that is not finite."""

from __future__ import annotations

import inspect
import math
import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.core.weights import WeightInit, WeightParams
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.debug.diagnosis import NotFinite, may_be_diagnosed
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from tests.pipeline.example_layers import loss_fn, pipeline, raw_values, state_batch
from tests.support.cases import exhaustive

OF_MACHINES = {"ResourceExhausted", "Unavailable", "Aborted", "DeadlineExceeded"}


def test_all_but_the_errors_of_machines_may_be_diagnosed() -> None:
    kinds: list[Any] = [
        kind
        for _, kind in inspect.getmembers(tf.errors, inspect.isclass)
        if issubclass(kind, tf.errors.OpError) and kind is not tf.errors.OpError
    ]
    found = {
        kind.__name__.removesuffix("Error"): may_be_diagnosed(kind(None, None, "odd"))
        for kind in kinds
    }
    assert {name for name, yes in found.items() if not yes} == OF_MACHINES
    assert found.keys() >= {"Internal", "OutOfRange", "Unimplemented", "Cancelled"}


class UnsupportedLayer(BaseLayer):
    """An operation that TensorFlow defines without a kernel."""

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        patches = tf.image.extract_patches(
            tf.reshape(tf.stop_gradient(x), [-1, 2, 3, 1]),
            sizes=[2, 1, 1, 1],
            strides=[1, 1, 1, 1],
            rates=[1, 1, 1, 1],
            padding="SAME",
        )
        return x + tf.reduce_sum(patches)


def test_an_operation_that_is_not_implemented_is_found() -> None:
    dense = FCLayer.Params().Set(input_dim=6, output_dim=6)
    layer = pipeline([dense, UnsupportedLayer.Params(), dense.Copy()], [1, 3], 2)
    (x, _), targets = state_batch(4)
    theta, step = raw_values(layer), tf.constant(0, tf.int64)
    with ForwardContext(step=step), pytest.raises(tf.errors.OpError) as failed:
        layer.ComputeGradients(theta, [x], targets, loss_fn)
    assert may_be_diagnosed(failed.value)
    place = r"\bforward\b.*\bpipe/cells_1 .*stage 1\b.*micro-batch 0\b"
    with (
        ForwardContext(step=step),
        pytest.raises(tf.errors.UnimplementedError, match=place) as found,
    ):
        layer.Diagnose(theta, [x], targets, loss_fn)
    first, place, line, cause, remedy = str(found.value).splitlines()
    assert re.search(r"\bcells_1/ExtractImagePatches\W*$", first)
    assert "Detected at node" not in first
    assert place.startswith(f'  File "{__file__}", line ')
    assert place.endswith(", in FProp")
    assert line == "    patches = tf.image.extract_patches("
    assert re.match("Likely cause: .*device", cause)
    assert re.match("What to do: .*--devices", remedy)


class SpoilingLayer(BaseLayer):
    """A layer in which something is not finite if its input is 100.

    `how` says what: the `gradient`, the `output`, `another` output, or a `metric`.
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("how", "", "What is spoilt.")
        return p

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> NestedMap:
        how = self.params.how
        spoilt = tf.where(x >= 100.0, np.nan, x)
        if how == "metric":
            self.AddMetric("spoilt", tf.reduce_sum(spoilt), tf.constant(1.0))
        if how == "gradient":
            x -= tf.sqrt(100.0 - x)
        return NestedMap(
            x=spoilt if how == "output" else x,
            more=[None, spoilt if how == "another" else x],
        )


class WeighingLayer(BaseLayer):
    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.CreateVariable("w", WeightParams([6], WeightInit.Constant(1.0)))

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        return x * theta.w


class LeavingLayer(BaseLayer):
    def FProp(self, theta: NestedMap, given: NestedMap) -> tf.Tensor:
        return given.x[:, :3]


def _spoilt(how: str = "") -> PipeliningLayer:
    cells = [WeighingLayer.Params(), SpoilingLayer.Params().Set(how=how)]
    return pipeline([*cells, LeavingLayer.Params()], [1, 3], 2)


def _batch(last: float = 100.0) -> Any:
    """One of its numbers is `last`, in the last micro-batch."""
    x = tf.tensor_scatter_nd_update(tf.ones([4, 6]), [[3, 1]], [last])
    return [x], state_batch(4)[1]


def _diagnosed(
    layer: PipeliningLayer, batch: Any, loss: Any = loss_fn, do_eval: bool = False
) -> str:
    """Returns the message about values that are not finite, or ""."""
    inputs, targets = batch
    with ForwardContext(step=tf.constant(0, tf.int64), do_eval=do_eval):
        try:
            layer.Diagnose(raw_values(layer), inputs, targets, loss)
        except FloatingPointError as error:
            return str(error)
    return ""


OF_SPOILT = r"\D*\bpipe/cells_1\D*\bstage 1\D*\bmicro-batch 1\D*"


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("output", rf"\bx\b{OF_SPOILT}\bnan\D*\b1\D*\b12\b"),
        exhaustive("another", rf"\bmore\[1\]{OF_SPOILT}\bnan\D*\b1\D*\b12\b"),
        exhaustive("metric", rf"\bmetrics\.spoilt\[0\]{OF_SPOILT}\bnan\D*\b1\D*\b1\b"),
        ("gradient", rf"\bgradient\D*\b0{OF_SPOILT}\b(inf|nan)\D*\b1\D*\b12\b"),
    ],
)
def test_the_first_that_is_not_finite_is_found(how: str, text: str) -> None:
    """With its layer and micro-batch."""
    layer = _spoilt(how)
    assert re.match(rf"\D*{text}", _diagnosed(layer, _batch()))
    assert _diagnosed(layer, _batch(99.0)) == ""
    in_evaluation = _diagnosed(layer, _batch(), do_eval=True)
    assert bool(in_evaluation) == (how != "gradient")


def test_inputs_and_weights_that_are_not_finite_are_found() -> None:
    layer, (inputs, targets) = _spoilt(), _batch()
    text = _diagnosed(layer, _batch(np.nan))
    assert re.match(r"\D*\binput\[0\]\D*\bnan\D*\b1\D*\b24\W*$", text)
    targets.weight = tf.constant([1.0, 1.0, np.nan, 1.0])
    text = _diagnosed(layer, (inputs, targets))
    assert re.match(r"\D*\btarget\.weight\b\D*\bnan\D*\b1\D*\b4\W*$", text)
    layer.vars.cells[0].w.assign([1.0, np.inf, np.nan, 1.0, 1.0, 1.0])
    text = _diagnosed(layer, _batch())
    place = r"\bw\b\D*\bpipe/cells_0\D*\bstage 0\D*"
    assert re.match(rf"\D*{place}\bnan\D*\binf\D*\b2\D*\b6\W*$", text)


def _without_number(logits: tf.Tensor, targets: NestedMap) -> NestedMap:
    return NestedMap(loss=(tf.reduce_sum(tf.math.log(-tf.abs(logits))), 1.0))


def _without_slope(logits: tf.Tensor, targets: NestedMap) -> NestedMap:
    return NestedMap(loss=(tf.reduce_sum(tf.sqrt(tf.abs(logits - 100.0))), 1.0))


def test_a_loss_that_is_not_finite_is_found() -> None:
    of_loss = r"\D*\bloss\b\D*\bstage 1\D*\bmicro-batch"
    text = _diagnosed(_spoilt(), _batch(), _without_number)
    named = rf"\D*\bmetrics\.loss\[0\]{of_loss} 0\D*\bnan\D*\b1\D*\b1\W*$"
    assert re.match(named, text)
    text = _diagnosed(_spoilt(), _batch(), _without_slope)
    named = rf"\D*\bgradient\D*\b0{of_loss} 1\D*\b(inf|nan)\D*\b1\D*\b6\b"
    assert re.match(named, text)


NAN, INF = math.nan, math.inf


def _text(*values: tuple[str, str, tf.Tensor]) -> str:
    found = NotFinite()
    for where, what, x in values:
        found.inspect(where, [(what, x)])
    with pytest.raises(FloatingPointError) as caught:
        found.raise_found()
    return str(caught.value)


def test_nothing_is_raised_for_finite_values() -> None:
    found = NotFinite()
    found.inspect("model", [("a", tf.ones([2])), ("b", tf.constant([1, 2]))])
    found.inspect("model", [("c", tf.constant(["nan"])), ("d", tf.zeros([0]))])
    found.raise_found()


@pytest.mark.parametrize(
    "dtype", [tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64]
)
def test_the_first_is_named_with_how_many(dtype: tf.DType) -> None:
    x = tf.cast(tf.constant([1.0, NAN, 2.0, NAN]), dtype)
    text = _text(
        ("l0", "output", tf.ones([2], dtype)),
        ("l1", "output", x),
        ("l2", "output", x + x),
    )
    assert re.search(r"\boutput\b.*\bl1\b\D*\bnan\D*\b2\D*\b4\W*$", text)
    assert "l0" not in text


def test_after_an_infinite_value_the_first_nan_is_named_too() -> None:
    text = _text(
        ("l0", "mask", tf.constant([0.0, -INF])),
        ("l1", "output", tf.constant([INF])),
        ("l2", "output", tf.constant([INF, NAN, 3.0])),
        ("l3", "output", tf.constant([NAN])),
    )
    first = r"\bmask\b.*\bl0\b\D*\binf\D*\b1\D*\b2"
    nan = r"\boutput\D*\bl2\b\D*\bnan\D*\binf\D*\b2\D*\b3"
    assert re.search(rf"{first}\D*{nan}\W*$", text)
