"""A pipeline's layers as decoding runs them: one by one, each on its device."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.models.transformer.logits import LogitsLayer
from lingvo_pipe.models.transformer.stream_embedding import StreamEmbeddingLayer
from lingvo_pipe.models.transformer.streams import TARGET
from lingvo_pipe.models.transformer.transformer_layer import TransformerLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.devices.stage_devices import must_compile
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer

_KINDS = (StreamEmbeddingLayer, TransformerLayer, LogitsLayer)


class PlacedCell(NamedTuple):
    """A layer, its weights, and where it runs.

    Attributes:
        layer: the layer.
        theta: its weights, in the dtypes that it computes in.
        device: full name of its stage's device; None: wherever TensorFlow likes.
    """

    layer: BaseLayer
    theta: NestedMap
    device: str | None = None


def placed_cells(pipeline: PipeliningLayer, theta: NestedMap) -> list[PlacedCell]:
    """The layers of a pipeline, those before it included.

    Weights that belong to a layer of another stage are brought to the device once, not
    in every step of a loop.

    Args:
        pipeline: the pipeline.
        theta: in the structure of its `vars`.

    Raises:
        ValueError: if a layer can't run token by token, or a device runs no such loop.
    """
    devices = [pipeline.devices[0]] * len(pipeline.before)
    devices += [
        pipeline.devices[pipeline.stage_of_cell(i)] for i in range(len(pipeline.cells))
    ]
    layers = [*pipeline.before, *pipeline.cells]
    thetas = [*theta.before, *theta.cells]
    return [_placed(*each) for each in zip(layers, thetas, devices, strict=True)]


def _placed(layer: BaseLayer, theta: NestedMap, device: str) -> PlacedCell:
    _check(layer, device)
    with tf.device(device):
        local = tf.nest.map_structure(tf.identity, layer.CastTheta(theta))
    return PlacedCell(layer, local, device)


def _check(layer: BaseLayer, device: str) -> None:
    if not isinstance(layer, _KINDS):
        raise ValueError(
            "Layers that decode token by token must be "
            f"{', '.join(kind.__name__ for kind in _KINDS)}; {layer.path} is a "
            f"{type(layer).__name__}. Build the model of these."
        )
    is_attention = isinstance(layer, TransformerLayer)
    if is_attention and layer.params.stream == TARGET and not layer.params.causal:
        raise ValueError(
            "Layers of the target must be causal to decode token by token; "
            f"{layer.path} sees later tokens. Set causal=True, and train it so."
        )
    if must_compile(device):
        raise ValueError(
            f"Decoding runs on CPUs and GPUs; {layer.path} is on {device}. Choose "
            "others: a checkpoint fits any --devices."
        )
