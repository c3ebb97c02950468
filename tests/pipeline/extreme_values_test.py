"""Many micro-batches, late steps, and numbers at the ends of their range."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.dropout import DropoutLayer
from tests.pipeline.example_layers import (
    gradients,
    image_batch,
    image_cells,
    pipeline,
    plain_outputs,
    state_batch,
    state_cells,
)
from tests.pipeline.plain_model import assert_close, by_path, plain_gradients
from tests.support.cases import exhaustive


def test_many_micro_batches_of_a_late_step_have_masks_of_their_own() -> None:
    """bfloat16 could neither hold the step, 3000, nor count examples."""
    cells = [DropoutLayer.Params().Set(keep_prob=0.5, dtype=tf.bfloat16)] * 2
    layer = pipeline(cells[:1], 1, 32)
    masks: set[bytes] = set()
    for step in (3000, 3001):
        with ForwardContext(step=tf.constant(step, tf.int64)):
            outputs = layer.FProp(layer.theta, tf.ones([32, 64], tf.bfloat16))
        assert outputs.dtype == tf.bfloat16
        masks |= {row.tobytes() for row in tf.cast(outputs, tf.float32).numpy()}
    assert len(masks) == 2 * 32


MODELS: dict[str, Any] = {
    "state": (state_cells, state_batch),
    "bfloat16": (lambda: state_cells(tf.bfloat16), state_batch),
    "image": (lambda: image_cells(batch_norm=False), image_batch),
}


@pytest.mark.parametrize(
    ("model", "value"),
    [
        *[("state", -np.inf), ("bfloat16", np.nan), ("image", np.nan)],
        *(exhaustive(model, np.inf) for model in MODELS),
        *[exhaustive("state", np.nan), exhaustive("bfloat16", -np.inf)],
        exhaustive("image", -np.inf),
    ],
)
def test_a_value_that_is_not_finite_stays_in_its_example(
    model: str, value: float
) -> None:
    """In a full micro-batch, and in one with padding rows."""
    make_cells, make_batch = MODELS[model]
    inputs, _ = make_batch(8)
    for num_micro_batches in (2, 3):
        layer = pipeline(make_cells(), 2, num_micro_batches)
        outputs = []
        for bad in (None, value):
            x = inputs[0].numpy()
            if bad is not None:
                x[5] = bad
            with ForwardContext(step=tf.constant(3, tf.int64)):
                found = layer.FProp(layer.theta, tf.constant(x), *inputs[1:])
            outputs.append(tf.cast(found, tf.float32).numpy())
        clean, dirty = outputs
        assert not np.isfinite(dirty[5]).all()
        others = [i for i in range(8) if i != 5]
        np.testing.assert_array_equal(dirty[others], clean[others])


def test_dropped_values_may_be_infinite() -> None:
    """They contribute neither forward nor backward."""
    dropout = DropoutLayer.Params().Set(keep_prob=0.5)
    dense = FCLayer.Params().Set(input_dim=6, output_dim=3)
    layer = pipeline([dropout, dense], 2, 2)
    (x, _), targets = state_batch(4)
    step, first = tf.constant(3, tf.int64), tf.constant(0, tf.int64)
    with ForwardContext(step=step, first_example=first):
        kept = layer.cells[0](tf.ones_like(x)) > 0
    infinite = tf.where(kept, x, -np.inf)
    want, got = (gradients(layer, ([given], targets)) for given in (x, infinite))
    for a, b in zip(
        tf.nest.flatten(got.gradients), tf.nest.flatten(want.gradients), strict=True
    ):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("scale", [1e30, exhaustive(1e-30)])
def test_bfloat16_has_the_range_of_float32(scale: float) -> None:
    cells = [
        FCLayer.Params().Set(input_dim=6, output_dim=n, fprop_dtype=tf.bfloat16)
        for n in (6, 6, 3)
    ]
    layer = pipeline([cell.Set(dtype=tf.float32) for cell in cells], 2, 4)
    (x, _), targets = state_batch(8)
    x = tf.cast(scale * x, tf.bfloat16)
    got, want = layer.FProp(layer.theta, x), plain_outputs(layer, [x])
    np.testing.assert_allclose(
        tf.cast(got, tf.float64), tf.cast(want, tf.float64), rtol=0.02
    )
    result = gradients(layer, ([x], targets))
    plain = plain_gradients(layer, ([x], targets))
    for gradient in by_path(layer, result.gradients).values():
        assert np.isfinite(gradient).all()
    assert_close(by_path(layer, result.gradients), plain.gradients, 0.05)
