"""Layers that XLA compiles compute the same as others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.pipeline.execution import pipeline_function
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.pipeline.tracing import phases
from tests.pipeline.example_layers import (
    function_cell,
    gradients,
    image_batch,
    image_cells,
    pipeline,
    state_batch,
    state_cells,
)
from tests.support.errors import fails


def _few_cells() -> list[InstantiableParams]:
    """Returns four cells, which XLA compiles sooner than six."""
    return [*state_cells()[:3], state_cells()[-1]]


MODELS = {"images": (image_cells, image_batch), "maps": (_few_cells, state_batch)}


def _gradients(
    model: str, num_stages: int, compiled: bool = True, **more: Any
) -> list[np.ndarray]:
    make_cells, make_batch = MODELS[model]
    layer = (
        PipeliningLayer.Params()
        .Set(
            name="pipe",
            cell_tpl=make_cells(),
            splits=num_stages,
            num_micro_batches=4,
            jit_compile=compiled,
            **more,
        )
        .Instantiate()
    )
    found = gradients(layer, make_batch(8)).gradients
    return [g.numpy() for g in tf.nest.flatten(found) if g is not None]


@pytest.mark.exhaustive
@pytest.mark.parametrize("model", ["maps", "images"])
def test_gradients_are_those_without_xla(model: str) -> None:
    """In stages, dropout included: the random numbers are the same."""
    plain, compiled = _gradients(model, 1, compiled=False), _gradients(model, 3)
    for a, b in zip(plain, compiled, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_each_stage_is_compiled_for_its_own_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    devices: dict[str, None] = {}

    def compilation(by_xla: bool, device: str) -> phases.Compilation:
        devices[device[-5:]] = None
        return phases.compilation(by_xla, device)

    monkeypatch.setattr(pipeline_function, "compilation", compilation)
    _gradients("maps", 3, compiled=False)
    assert [*devices] == ["CPU:0", "CPU:1", "CPU:2"]


def _looping(x: tf.Tensor) -> tf.Tensor:
    return tf.while_loop(
        lambda i, x: i < 3,
        lambda i, x: (i + 1, tf.tanh(x)),
        [0, x],
        maximum_iterations=3,
    )[1]


def _compiled(function: Any, compiled: bool = True) -> PipeliningLayer:
    dense = FCLayer.Params().Set(input_dim=6, output_dim=3)
    return pipeline([dense, function_cell(function)], 1, 2, jit_compile=compiled)


def test_a_loop_that_xla_would_cut_is_refused() -> None:
    ([x, _], targets) = state_batch(4)
    with fails(path="pipe/cells_1 (stage 0)"):
        gradients(_compiled(_looping), ([x], targets))


@pytest.mark.exhaustive
def test_a_loop_that_is_recomputed_is_compiled() -> None:
    ([x, _], targets) = state_batch(4)
    whole = gradients(_compiled(tf.recompute_grad(_looping)), ([x], targets))
    want = gradients(_compiled(_looping, compiled=False), ([x], targets))
    a, b = (x.gradients.cells[0].w for x in (whole, want))
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def _positive(x: tf.Tensor) -> tf.Tensor:
    tf.debugging.assert_positive(-tf.abs(x))
    return x + 1.0


@pytest.mark.parametrize("compiled", [True, False])
def test_assertions_that_xla_leaves_out_are_warned_of(
    compiled: bool, warnings: pytest.LogCaptureFixture
) -> None:
    layer, x = _compiled(_positive, compiled), tf.ones([4, 6])
    if compiled:
        layer.FProp(layer.theta, x)
    else:
        with pytest.raises(tf.errors.InvalidArgumentError):
            layer.FProp(layer.theta, x)
    named = [text for text in warnings.messages if "XLA" in text]
    assert ["pipe/cells_1" in text for text in named] == [True] * compiled
