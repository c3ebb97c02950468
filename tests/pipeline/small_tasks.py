"""Small tasks with everything that training changes: weights, slots, averages."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.batch_norm import BatchNormLayer
from lingvo_pipe.models.amoebanet.network import amoebanet
from lingvo_pipe.models.image_classifier import ImageClassifier
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.keras_optimizer import OptimizerParams
from lingvo_pipe.training.train_step import TrainStep
from tests.pipeline.small_transformer import (
    TransformerTask,
    transformer_batch,
    transformer_cells,
)


def transformer_task(num_blocks: int = 3) -> InstantiableParams:
    """Words, a mask, dropout, Adam: 2 + 2 · `num_blocks` cells."""
    p = TransformerTask.Params()
    p.pipeline.cell_tpl = transformer_cells(num_blocks)
    return p


def bfloat16_task() -> InstantiableParams:
    """Computes in bfloat16 with weights in float32."""
    return transformer_task().Set(dtype=tf.float32, fprop_dtype=tf.bfloat16)


def amoebanet_task() -> InstantiableParams:
    """Stem, normal cell, reduction cell and head of an AmoebaNet: 4 cells."""
    cells = amoebanet(
        genotype="D",
        num_cells=3,
        num_filters=4,
        num_classes=3,
        num_image_channels=1,
        small_images=True,
        norm_tpl=BatchNormLayer.Params().Set(decay=0.5),
    )
    p = ImageClassifier.Params().Set(label_smoothing=0.1)
    p.pipeline.cell_tpl = [*cells[:3], cells[-1].Copy().Set(num_in=cells[3].num_in)]
    p.train.Set(
        learning_rate=0.05,
        optimizer=OptimizerParams("SGD", momentum=0.9, nesterov=True),
    )
    return p


def amoebanet_batch(batch_size: int, seed: int) -> NestedMap:
    def draw(shape: list[int], stream: int, **limits: Any) -> tf.Tensor:
        return tf.random.stateless_uniform(shape, [seed, stream], **limits)

    return NestedMap(
        image=draw([batch_size, 4, 4, 1], 1),
        label=draw([batch_size], 2, maxval=3, dtype=tf.int32),
        weight=draw([batch_size], 3),
    )


TASKS: dict[str, Any] = {
    "transformer": (transformer_task, transformer_batch),
    "deep transformer": (lambda: transformer_task(7), transformer_batch),
    "bfloat16": (bfloat16_task, transformer_batch),
    "amoebanet": (amoebanet_task, amoebanet_batch),
}


def trained_bytes(task: str, **pipeline: Any) -> dict[str, bytes]:
    """All that three steps of training leave, by path.

    Args:
        task: one of TASKS.
        **pipeline: params of the task's pipeline.
    """
    make_params, make_batch = TASKS[task]
    p = make_params().Set(name="task")
    p.pipeline.Set(num_micro_batches=4, **pipeline)
    step = TrainStep(p.Instantiate())
    for seed in range(3):
        step(make_batch(8, seed))
    return {path: v.numpy().tobytes() for path, v in step.State().items()}
