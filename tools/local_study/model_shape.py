"""Costs of a model's blocks and bytes between blocks, computed from shapes alone."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.nests import map_present, present, spec_of
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.local_loss import LocalLossLayer
from lingvo_pipe.layers.sequential import outputs_in_sequence
from lingvo_pipe.local_parallelism.blocks import Block
from lingvo_pipe.pipeline.memory.workspace import num_bytes
from lingvo_pipe.pipeline.stage_choice.traced_cells import pipeline_sizes
from lingvo_pipe.training.task.base_task import BaseTask
from lingvo_pipe.training.task.pipeline_inputs import batch_placeholders
from tools.local_study.costs import BlockCost, block_costs
from tools.local_study.study_rows import Boundary


def model_shape(
    task_params: InstantiableParams, element_spec: Any, blocks: Sequence[Block]
) -> tuple[list[BlockCost], list[Boundary]]:
    """Returns the costs of blocks, and the boundaries between blocks.

    If there is one block, the boundaries are between the layers in this block.
    """
    with tf.Graph().as_default():
        task = task_params.Instantiate()
        inputs = tuple(task.PipelineInputs(batch_placeholders(element_spec)))
        cells, cell_flops, losses = [], [], []
        pairs = zip(task.pipeline.cells, _example_flops(task, inputs), strict=True)
        for cell, flops in pairs:
            if isinstance(cell, LocalLossLayer):
                losses.append(flops)
            else:
                cells.append(cell)
                cell_flops.append(flops)
        # A local loss runs the layers that its block looks ahead to, and its head.
        heads = [
            count - sum(cell_flops[block.end : block.end + block.ahead])
            for block, count in zip(blocks, losses, strict=False)
        ]
        costs = block_costs(blocks, cell_flops, [*heads, 0])
        return costs, _boundaries(blocks, cells, _passed_on(task, cells, inputs))


def _boundaries(
    blocks: Sequence[Block],
    cells: Sequence[BaseLayer],
    passed_on: Sequence[Sequence[tf.Tensor]],
) -> list[Boundary]:
    """Returns the boundaries. Between blocks, no gradients of activations are sent."""
    ends = [(block.end, block.ahead) for block in blocks[:-1]]
    has_blocks = bool(ends)
    boundaries = []
    for end, ahead in ends or [(i, 0) for i in range(1, len(cells))]:
        tensors, looked_at = passed_on[end - 1], cells[end : end + ahead]
        back = [x for x in tensors if x.dtype.is_floating and not has_blocks]
        shared = [
            variable
            for cell in looked_at
            for variable in cell.VariablePaths().values()
            if variable.trainable
        ]
        boundary = Boundary(
            after=cells[end - 1].params.name,
            forward=num_bytes(tensors),
            backward=num_bytes(back),
            weights=2 * num_bytes(shared),
        )
        boundaries.append(boundary)
    return boundaries


def _example_flops(task: BaseTask, inputs: tuple) -> list[float]:
    """Returns cells' flops for one example. The prologue counts in the first cell."""
    pipeline = task.pipeline
    before, cells = pipeline_sizes(pipeline.params, *map_present(spec_of, inputs))
    num_examples = tf.nest.flatten(inputs)[0].shape[pipeline.params.batch_dim]
    first, *later = [cell.flops for cell in cells]
    first += sum(layer.flops for layer in before)
    return [count / num_examples for count in (first, *later)]


def _passed_on(
    task: BaseTask, cells: Sequence[BaseLayer], inputs: tuple
) -> list[list[tf.Tensor]]:
    input_ids = {id(x) for x in present(inputs)}
    layers = [*task.pipeline.before, *cells]
    thetas = [layer.theta for layer in layers]
    with ForwardContext(do_eval=True):
        _, *outputs = outputs_in_sequence(layers, thetas, inputs)
    return [
        [x for x in present(output) if id(x) not in input_ids]
        for output in outputs[-len(cells) :]
    ]
