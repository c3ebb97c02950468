"""Models with a prologue, which several tests share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.nests import present
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.batch_norm import BatchNormLayer
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.weights import WeightParams
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.dropout import DropoutLayer
from lingvo_pipe.layers.sequential import SequentialLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from tests.pipeline.example_layers import pipeline, state_batch, state_cells

DIM = 6
NUM_TOKENS = 5

Batch = tuple[list[tf.Tensor], NestedMap]


class TableLayer(BaseLayer):
    """A table: looks up integers, multiplies floats by the transposed table."""

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.CreateVariable("table", WeightParams([NUM_TOKENS, DIM]))

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        if x.dtype.is_integer:
            return tf.gather(theta.table, x)
        return tf.matmul(x, theta.table, transpose_b=True)


class TwiceLayer(BaseLayer):
    """A layer that returns its input, and a result twice; one weight is frozen."""

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.CreateVariable("shift", WeightParams([DIM]))
        self.CreateVariable("frozen", WeightParams([DIM], trainable=False))
        self.CreateVariable("unused", WeightParams([2]))

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> Any:
        y = tf.tanh(tf.cast(x, self.fprop_dtype) + theta.shift + theta.frozen)
        return x, y, None, y


class SumLayer(BaseLayer):
    def FProp(self, theta: NestedMap, *args: Any) -> tf.Tensor:
        own = [tf.cast(x, self.fprop_dtype) for x in present(args)]
        return tf.add_n([(i + 1.0) * x for i, x in enumerate(own)])


def dense(**params: Any) -> InstantiableParams:
    return FCLayer.Params().Set(
        input_dim=DIM, output_dim=DIM, activation="TANH", **params
    )


def _norm_and_dropout() -> InstantiableParams:
    parts = [
        dense(),
        BatchNormLayer.Params().Set(dim=DIM),
        DropoutLayer.Params().Set(keep_prob=0.7),
    ]
    return SequentialLayer.Params().Set(sub=parts)


def make_batch(size: int) -> Batch:
    (x, _), targets = state_batch(size)
    return [x], targets


def make_token_batch(size: int) -> Batch:
    return [tf.range(size) ** 2 % NUM_TOKENS], state_batch(size)[1]


Model = tuple[list[InstantiableParams], list[InstantiableParams], Callable[[int], Any]]

# By name the layers of the prologue, the cells, and a function that makes a batch.
MODELS: dict[str, Model] = {
    "sums": ([_norm_and_dropout(), dense()], [dense(), dense()], make_batch),
    "maps": (state_cells()[:3], state_cells()[3:], state_batch),
    "tokens": ([TableLayer.Params()], [dense(), TableLayer.Params()], make_token_batch),
    "twice": (
        [dense(), TwiceLayer.Params(), SumLayer.Params(), TwiceLayer.Params()],
        [SumLayer.Params(), dense()],
        make_batch,
    ),
}


def pipeline_of(
    model: str, num_stages: int = 2, num_micro_batches: int = 4, **params: Any
) -> PipeliningLayer:
    before, cells, _ = MODELS[model]
    return pipeline(
        cells, num_stages, num_micro_batches, before_tpl=before[:], **params
    )
