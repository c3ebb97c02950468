"""Costs and traffic of a model's blocks, from shapes, without running anything."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.nests import map_present, present
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.local_loss import LocalLossLayer
from lingvo_pipe.layers.sequential import outputs_in_sequence
from lingvo_pipe.local_parallelism.blocks import Block
from lingvo_pipe.pipeline.memory.peak_memory import num_bytes
from lingvo_pipe.pipeline.splitting.cell_costs import pipeline_costs
from lingvo_pipe.training.task.base_task import BaseTask
from lingvo_pipe.training.task.pipeline_inputs import batch_placeholders
from tools.local_study.costs import BlockCost, block_costs
from tools.local_study.study_rows import Boundary


def model_shape(
    task_params: InstantiableParams, element_spec: Any, blocks: Sequence[Block]
) -> tuple[list[BlockCost], list[Boundary]]:
    """Returns the blocks' costs, and the boundaries between them.

    If there is a single block, boundaries are between its layers. Blocks do not count
    cells of local losses. The task, as trained by blocks or as a whole, is made in a
    scratch graph, without memory for its variables.
    """
    with tf.Graph().as_default():
        task = task_params.Instantiate()
        inputs = tuple(task.PipelineInputs(batch_placeholders(element_spec)))
        flops, all_cells = _example_flops(task, inputs), task.pipeline.cells
        is_loss = [isinstance(cell, LocalLossLayer) for cell in all_cells]
        is_cell = [not each for each in is_loss]
        cells = list(itertools.compress(all_cells, is_cell))
        cell_flops = list(itertools.compress(flops, is_cell))
        # A local loss runs the layers that its block looks ahead to, and its head.
        losses = itertools.compress(flops, is_loss)
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
    """Returns the boundaries; an activation's gradient crosses none between blocks.

    A block receives the weights of the layers that it looks ahead to, and sends their
    gradients back. Tensors of the mini-batch itself do not cross.
    """
    if len(blocks) == 1:
        return [
            Boundary(
                cell.params.name,
                num_bytes(tensors),
                num_bytes(x for x in tensors if x.dtype.is_floating),
                weights=0,
            )
            for cell, tensors in zip(cells[:-1], passed_on, strict=False)
        ]
    found = []
    for block in blocks[:-1]:
        shared = num_bytes(
            variable
            for cell in cells[block.end : block.end + block.ahead]
            for variable in cell.VariablePaths().values()
            if variable.trainable
        )
        name, forward = cells[block.end - 1].params.name, passed_on[block.end - 1]
        found.append(Boundary(name, num_bytes(forward), 0, 2 * shared))
    return found


def _example_flops(task: BaseTask, inputs: tuple) -> list[float]:
    """Returns each cell's flops for one example.

    Flops of layers before the cells count in the first cell.
    """
    pipeline = task.pipeline
    costs = pipeline_costs(
        [layer.params for layer in pipeline.before],
        [cell.params for cell in pipeline.cells],
        *map_present(lambda x: tuple(x.shape), inputs),
    )
    num_examples = tf.nest.flatten(inputs)[0].shape[pipeline.params.batch_dim]
    first, *others = costs.cells.flops
    return [count / num_examples for count in (first + costs.prologue, *others)]


def _passed_on(
    task: BaseTask, cells: Sequence[BaseLayer], inputs: tuple
) -> list[list[tf.Tensor]]:
    """Returns each cell's outputs, except tensors of the mini-batch."""
    known = {id(x) for x in present(inputs)}
    layers = [*task.pipeline.before, *cells]
    thetas = [layer.theta for layer in layers]
    with ForwardContext(do_eval=True):
        _, *outputs = outputs_in_sequence(layers, thetas, inputs)
    return [
        [x for x in present(y) if id(x) not in known] for y in outputs[-len(cells) :]
    ]
