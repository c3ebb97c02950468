"""Layers and models that the tests of pipelines share."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from lingvo_pipe.core.nests import as_args
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.batch_norm import BatchNormLayer
from lingvo_pipe.layers.convolution import Conv2DLayer, GlobalAveragePoolingLayer
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.core.weights import WeightParams
from lingvo_pipe.layers.dense import ActivationLayer, FCLayer
from lingvo_pipe.layers.dropout import DropoutLayer
from lingvo_pipe.layers.sequential import SequentialLayer
from lingvo_pipe.layers.softmax_cross_entropy import softmax_cross_entropy
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.pipeline.schedules.schedule import Schedule

NUM_CLASSES = 3


class ResidualLayer(BaseLayer):
    """Passes on a NestedMap with floats, integers and None; one tensor skips cells."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("dim", 6, "Channels.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        dense = FCLayer.Params().Set(
            input_dim=self.params.dim, output_dim=self.params.dim, activation="TANH"
        )
        self.CreateChild("dense", dense)
        self.CreateChild("dropout", DropoutLayer.Params().Set(keep_prob=0.8))

    def FProp(self, theta: NestedMap, state: NestedMap) -> NestedMap:
        hidden = self.dense.FProp(theta.dense, state.hidden)
        hidden = self.dropout.FProp(theta.dropout, hidden)
        return NestedMap(
            hidden=hidden + tf.cast(state.mask[:, tf.newaxis], hidden.dtype),
            skipped=state.skipped + state.hidden,
            mask=state.mask,
            absent=None,
        )


class FunctionLayer(BaseLayer):
    """Computes a function of its inputs, without weights."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("function", None, "What FProp computes.")
        return p

    def FProp(self, theta: NestedMap, *args: Any) -> Any:
        return self.params.function(*args)


def function_cell(function: Any) -> InstantiableParams:
    return FunctionLayer.Params().Set(function=function)


class CountingLayer(BaseLayer):
    """A dense layer that counts how often it is traced."""

    traces = 0

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("dim", 3, "Channels.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.CreateVariable("w", WeightParams([self.params.dim] * 2))

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        CountingLayer.traces += 1
        return tf.matmul(x, theta.w)


class EnterLayer(BaseLayer):
    """(floats [B, D], integers [B]) -> the state of `ResidualLayer`."""

    def FProp(self, theta: NestedMap, x: tf.Tensor, mask: tf.Tensor) -> NestedMap:
        hidden = tf.cast(x, self.fprop_dtype)
        return NestedMap(hidden=hidden, skipped=hidden, mask=mask, absent=None)


class LeaveLayer(BaseLayer):
    """The state of `ResidualLayer` -> logits [B, N]."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("dim", 6, "Channels.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        dense = FCLayer.Params().Set(input_dim=self.params.dim, output_dim=NUM_CLASSES)
        self.CreateChild("dense", dense)

    def FProp(self, theta: NestedMap, state: NestedMap) -> tf.Tensor:
        return self.dense.FProp(theta.dense, state.hidden + state.skipped)


def image_cells(
    batch_norm: bool = True, num_convolutions: int = 4
) -> list[InstantiableParams]:
    """Returns cells of a convolutional net with batch norm and dropout.

    After up to four convolutions come a pooling and a dense layer.
    """
    cells = []
    for num_in in (1, 4, 4, 4)[:num_convolutions]:
        sub = [Conv2DLayer.Params().Set(filter_shape=[3, 3, num_in, 4])]
        if batch_norm:
            sub.append(BatchNormLayer.Params().Set(dim=4, decay=0.5))
        sub.append(ActivationLayer.Params().Set(activation="SWISH"))
        sub.append(DropoutLayer.Params().Set(keep_prob=0.7))
        cells.append(SequentialLayer.Params().Set(sub=sub))
    cells.append(GlobalAveragePoolingLayer.Params())
    cells.append(FCLayer.Params().Set(input_dim=4, output_dim=NUM_CLASSES))
    return cells


def state_cells(fprop_dtype: tf.DType = tf.float32) -> list[InstantiableParams]:
    """Returns six cells with NestedMaps of several dtypes, and None, between them."""
    cells = [EnterLayer.Params()]
    cells += [ResidualLayer.Params() for _ in range(4)]
    cells.append(LeaveLayer.Params())
    return [cell.Set(fprop_dtype=fprop_dtype, dtype=tf.float32) for cell in cells]


def image_batch(batch_size: int, seed: int = 0) -> tuple[list[tf.Tensor], NestedMap]:
    image = tf.random.stateless_normal([batch_size, 5, 4, 1], [seed, 1])
    return [image], _targets(batch_size, seed)


def state_batch(batch_size: int, seed: int = 0) -> tuple[list[tf.Tensor], NestedMap]:
    x = tf.random.stateless_normal([batch_size, 6], [seed, 1])
    mask = tf.range(batch_size) % 2
    return [x, mask], _targets(batch_size, seed)


def _targets(batch_size: int, seed: int) -> NestedMap:
    label = tf.random.stateless_uniform(
        [batch_size], [seed, 2], maxval=NUM_CLASSES, dtype=tf.int32
    )
    weight = tf.random.stateless_uniform([batch_size], [seed, 3])
    return NestedMap(label=label, weight=weight)


def loss_fn(logits: tf.Tensor, targets: NestedMap) -> NestedMap:
    return softmax_cross_entropy(logits, targets.label, targets.weight)


def pipeline(
    cells: list[InstantiableParams],
    num_stages: Any,
    num_micro_batches: int,
    **params: Any,
) -> PipeliningLayer:
    return (
        PipeliningLayer.Params()
        .Set(
            name="pipe",
            cell_tpl=[cell.Copy() for cell in cells],
            splits=num_stages,
            num_micro_batches=num_micro_batches,
            **params,
        )
        .Instantiate()
    )


def raw_values(layer: BaseLayer) -> NestedMap:
    return tf.nest.map_structure(lambda v: v.read_value(), layer.vars)


def gradients(
    layer: PipeliningLayer,
    batch: Any,
    step: int = 3,
    loss: Any = loss_fn,
    schedule: Schedule | None = None,
) -> NestedMap:
    """Returns metrics, gradients and sums of a pipeline for a batch, without times."""
    inputs, targets = batch
    with ForwardContext(step=tf.constant(step, tf.int64)):
        values = raw_values(layer)
        result = layer.ComputeGradients(values, inputs, targets, loss, schedule)
    del result.times
    return result


def plain_outputs(layer: PipeliningLayer, inputs: Any) -> Any:
    """Returns the outputs of the layers one after another, without a pipeline."""
    outputs: Any = tuple(inputs)
    for one in [*layer.before, *layer.cells]:
        outputs = one.FProp(one.theta, *as_args(outputs))
    return outputs
