"""Small tasks with everything that training changes: weights, slots, averages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.batch_norm import BatchNormLayer
from lingvo_pipe.models.amoebanet.cell import AmoebaCell
from lingvo_pipe.models.amoebanet.genotype import (
    GENOTYPES,
    CellGenotype,
    Edge,
    Genotype,
)
from lingvo_pipe.models.amoebanet.network import amoebanet
from lingvo_pipe.models.amoebanet.stem_and_head import HeadLayer, StemLayer
from lingvo_pipe.models.images.image_classifier import ImageClassifier
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.optim.keras_optimizer import OptimizerParams
from tests.pipeline.small_streams import stream_cells
from tests.pipeline.small_transformer import (
    TransformerTask,
    transformer_batch,
    transformer_cells,
)

NUM_CLASSES = 3
_AVERAGES = {"ema_decay": 0.5, "ema_decay_moving_vars": True}

# One pair of operations, with everything else that a cell has.
_SMALL_CELL = CellGenotype((((Edge("1x1", 0), Edge("max_pool_3x3", 1))),), (2,))
GENOTYPES["small"] = Genotype(normal=_SMALL_CELL, reduction=_SMALL_CELL)


class SmallTask(NamedTuple):
    """A task.

    Attributes:
        make_params: returns the task's params.
        make_batch: `(batch size, seed) -> batch`.
    """

    make_params: Callable[[], InstantiableParams]
    make_batch: Callable[[int, int], NestedMap]


def _transformer(num_cells: int) -> InstantiableParams:
    """Returns a task with words, a mask, dropout, Adam with clipped gradients."""
    p = TransformerTask.Params()
    p.pipeline.cell_tpl = transformer_cells((num_cells - 2) // 2)
    p.train.Set(**_AVERAGES)
    return p


def _bfloat16() -> InstantiableParams:
    """Returns a task in bfloat16 with weights in float32."""
    return _transformer(4).Set(dtype=tf.float32, fprop_dtype=tf.bfloat16)


def _small_amoebanet(num_cells: int) -> InstantiableParams:
    """Returns a stem, cells that keep the image's size, and a head with dropout."""
    norm_tpl = BatchNormLayer.Params().Set(decay=0.5)
    num = NUM_CLASSES
    cells = [
        AmoebaCell.Params().Set(
            genotype="small",
            num_filters=num,
            num_in=num,
            num_in_before=num if i else None,
            norm_tpl=norm_tpl.Copy(),
        )
        for i in range(num_cells - 2)
    ]
    stem = StemLayer.Params().Set(
        num_in=1, num_filters=num, stride=1, norm_tpl=norm_tpl.Copy()
    )
    head = HeadLayer.Params().Set(num_in=num, num_classes=num, keep_prob=0.9)
    return _image_classifier([stem, *cells, head])


def _amoebanet_d() -> InstantiableParams:
    """Returns 4 cells of an AmoebaNet-D: stem, normal, reduction, head."""
    cells = amoebanet(
        genotype="D",
        num_cells=3,
        num_filters=4,
        num_classes=NUM_CLASSES,
        num_image_channels=1,
        small_images=True,
        norm_tpl=BatchNormLayer.Params().Set(decay=0.5),
    )
    return _image_classifier([*cells[:3], cells[-1].Copy().Set(num_in=cells[3].num_in)])


def _streams(num_cells: int) -> InstantiableParams:
    return _image_classifier(stream_cells(num_cells, NUM_CLASSES))


def _image_classifier(cells: list[InstantiableParams]) -> InstantiableParams:
    p = ImageClassifier.Params().Set(label_smoothing=0.1)
    p.pipeline.cell_tpl = cells
    p.train.Set(
        learning_rate=0.05,
        optimizer=OptimizerParams("SGD", momentum=0.9, nesterov=True),
        **_AVERAGES,
    )
    return p


def _image_batch(batch_size: int, seed: int) -> NestedMap:
    def draw(shape: list[int], stream: int, **limits: Any) -> tf.Tensor:
        return tf.random.stateless_uniform(shape, [seed, stream], **limits)

    return NestedMap(
        image=draw([batch_size, 4, 4, 1], 1),
        label=draw([batch_size], 2, maxval=NUM_CLASSES, dtype=tf.int32),
        weight=draw([batch_size], 3),
    )


TASKS = {
    "transformer": SmallTask(lambda: _transformer(8), transformer_batch),
    "transformer of 4": SmallTask(lambda: _transformer(4), transformer_batch),
    "transformer of 16": SmallTask(lambda: _transformer(16), transformer_batch),
    "bfloat16": SmallTask(_bfloat16, transformer_batch),
    "amoebanet": SmallTask(lambda: _small_amoebanet(8), _image_batch),
    "amoebanet of 4": SmallTask(lambda: _small_amoebanet(4), _image_batch),
    "amoebanet of 16": SmallTask(lambda: _small_amoebanet(16), _image_batch),
    "streams": SmallTask(lambda: _streams(8), _image_batch),
    "streams of 4": SmallTask(lambda: _streams(4), _image_batch),
    "amoebanet-d": SmallTask(_amoebanet_d, _image_batch),
}
