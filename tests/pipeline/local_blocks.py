"""A model of three blocks, two of them with losses of their own.

Shapes: B examples, D channels.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.batch_norm import BatchNormLayer
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.dropout import DropoutLayer
from lingvo_pipe.layers.local_loss import LocalLossLayer
from lingvo_pipe.nested_map import NestedMap
from tests.pipeline.example_layers import NUM_CLASSES, state_batch

DIM = 6


def dense(output_dim: int = DIM) -> InstantiableParams:
    p = FCLayer.Params().Set(input_dim=DIM, output_dim=output_dim)
    return p.Set(activation="TANH" if output_dim == DIM else "NONE")


def local_loss(**params: Any) -> InstantiableParams:
    return LocalLossLayer.Params().Set(head=dense(NUM_CLASSES), **params)


def cells() -> list[InstantiableParams]:
    """Returns three blocks, the second with batch norm and dropout."""
    return [
        dense(),
        dense(),
        local_loss(loss_name="first"),
        dense(),
        BatchNormLayer.Params().Set(dim=DIM),
        DropoutLayer.Params().Set(keep_prob=0.8),
        local_loss(loss_name="second"),
        dense(),
        dense(NUM_CLASSES),
    ]


BLOCKS = [(0, 3), (3, 7), (7, 9)]  # The cells of each.


def batch(batch_size: int, seed: int = 0) -> tuple[list[tf.Tensor], NestedMap]:
    (x, _), targets = state_batch(batch_size, seed)
    return [x], targets
