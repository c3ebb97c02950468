"""What a run of a pipeline is given: weights, step, and a mini-batch that is cut.

Shapes: B examples in the mini-batch, in M micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers import forward_context
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.micro_batches import MicroBatches, as_tensors, cut_batch


def run_arguments(
    p: InstantiableParams,
    where: str,
    theta: NestedMap,
    inputs: Sequence[Any],
    targets: Any,
) -> tuple[MicroBatches, NestedMap]:
    """How a mini-batch is cut, and the arguments of a `PipelineFunction`.

    Args:
        p: params of a PipeliningLayer.
        where: the layer's path.
        theta: its weights.
        inputs: of the first cell, `[B, ...]`.
        targets: of the loss, `[B, ...]`; None: there is no loss.

    Raises:
        ValueError: if the mini-batch can't be cut so.
    """
    batch = as_tensors((tuple(inputs), targets), where)
    cut = cut_batch(batch, p.num_micro_batches, p.micro_batch_size, p.batch_dim, where)
    inputs, targets = cut.split(batch)
    context = forward_context.current()
    first = 0 if context.first_example is None else context.first_example
    return cut, NestedMap(
        thetas=tf.nest.map_structure(tf.convert_to_tensor, theta["cells"]),
        step=None if context.step is None else tf.convert_to_tensor(context.step),
        first_examples=tf.cast(first, tf.int64) + cut.first_examples,
        num_examples=tf.constant(cut.num_examples) if cut.is_ragged else None,
        batch_size=tf.constant(cut.batch_size),
        inputs=inputs,
        targets=targets,
        output_gradients=[],
    )
