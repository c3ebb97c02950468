"""The gradient norm that Lingvo's own test of GPipe states, from its model here.

The model (lingvo/core/gpipe_test.py): 16 convolutions of one channel with a window of
3x3, weights of 0.1 and a ReLU, on uniform images; the loss is the mean of the outputs.
Each layer counts its micro-batches. In several cells, the last layer of the first cell
is also an output.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe import base_layer, gpipe, py_utils
from lingvo_pipe.layers.convolution import Conv2DLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.sequential import FetchLayer
from tests.layers.lingvo_layers import Adding
from tests.support.cases import exhaustive

GOLDEN_NORM = 0.268087
NUM_LAYERS, NUM_MICRO_BATCHES = 16, 8
IMAGES = [16, 8, 8, 1]


class _CountedConvolution(base_layer.BaseLayer):
    """A convolution with a ReLU, `[B, H, W, 1]` -> `[B, H, W, 1]`."""

    def __init__(self, params):
        super().__init__(params)
        conv = Conv2DLayer.Params().Set(
            name="conv",
            filter_shape=(3, 3, 1, 1),
            filter_stride=(1, 1),
            params_init=py_utils.WeightInit.Constant(0.1),
        )
        self.CreateChild("conv", conv)
        self.RegisterAccumulator("count", Adding([]))

    def FProp(self, theta, inputs):
        with tf.name_scope(self.params.name):
            self.accumulators.count.Update(1.0)
            return tf.nn.relu(self.conv.FProp(theta.conv, inputs))

    @classmethod
    def FPropMeta(cls, p, inputs):
        py_utils.CheckShapes((inputs,))
        return py_utils.NestedMap(flops=1, out_shapes=(inputs,))


def _network(num_splits):
    subs = [
        _CountedConvolution.Params().Set(name=f"layer_{i}") for i in range(NUM_LAYERS)
    ]
    extraction = gpipe.FeatureExtractionLayer.Params()
    if num_splits == 1:
        return extraction.Set(name="seq", sub=subs).Instantiate()
    cells = []
    size = NUM_LAYERS // num_splits
    for i in range(num_splits):
        own = subs[i * size : (i + 1) * size]
        cell = extraction.Copy().Set(name=f"split_{i}", sub=own)
        if i == 0:
            cell.sub.append(FetchLayer.Params().Set(name="fetch"))
            cell.Set(act_fetch_layers=["fetch"], num_act_outputs=1)
        else:
            cell.Set(num_act_inputs=1, num_act_outputs=1)
        cells.append(cell)
    p = gpipe.PipeliningLayer.Params().Set(
        name="pipeline",
        num_micro_batches=NUM_MICRO_BATCHES,
        cell_tpl=cells,
        splits=num_splits,
    )
    return p.Instantiate()


def _images():
    """Returns the images of TensorFlow 1's generator, by the seeds of that test."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.set_random_seed(1245)
        return session.run(tf.random.uniform(IMAGES, seed=12345))


def _check(gradients, counts, expected_count):
    """Checks the norm, and what each layer has counted."""
    norm = tf.linalg.global_norm(gradients)
    np.testing.assert_allclose(norm, GOLDEN_NORM, rtol=1e-6, atol=1e-6)
    assert [float(x) for x in counts] == [expected_count] * NUM_LAYERS


def test_the_gradient_norm_of_one_cell_is_lingvos() -> None:
    network = _network(1)
    with ForwardContext() as context, tf.GradientTape() as tape:
        loss = tf.reduce_mean(network.FPropDefaultTheta(tf.constant(_images())))
    gradients = tape.gradient(loss, [*network.VariablePaths().values()])
    _check(gradients, context.accumulated.values(), 1)


@pytest.mark.parametrize("num_splits", [2, exhaustive(4)])
def test_the_gradient_norm_of_a_pipeline_is_lingvos(num_splits: int) -> None:
    network, images = _network(num_splits), tf.constant(_images())

    def loss_fn(outputs, targets):
        logits, fetched = outputs
        assert fetched.shape[1:] == IMAGES[1:]
        return py_utils.NestedMap(loss=(tf.reduce_mean(logits), tf.constant(1.0)))

    result = network.ComputeGradients(network.theta, [images], images, loss_fn)
    flat = tf.nest.flatten((result.gradients, result.accumulated))
    _check(flat[:NUM_LAYERS], flat[NUM_LAYERS:], NUM_MICRO_BATCHES)
