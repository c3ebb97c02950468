"""Costs and traffic of a model's blocks, from shapes, without running anything."""

from __future__ import annotations

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


class ModelShape:
    """A task in a scratch graph, without memory for its variables.

    Args:
        task_params: params of the task as trained, by blocks or as a whole.
        element_spec: spec of a batch.
        blocks: blocks of the task's cells, not counting cells of local losses.
    """

    def __init__(
        self,
        task_params: InstantiableParams,
        element_spec: Any,
        blocks: Sequence[Block],
    ):
        self._blocks = blocks
        with tf.Graph().as_default():
            task = task_params.Instantiate()
            inputs = tuple(task.PipelineInputs(batch_placeholders(element_spec)))
            self._flops = _example_flops(task, inputs)
            self._cells = [
                cell
                for cell in task.pipeline.cells
                if not isinstance(cell, LocalLossLayer)
            ]
            self._passed_on = _passed_on(task, self._cells, inputs)
            self._weight_bytes = [
                num_bytes(v for v in cell.VariablePaths().values() if v.trainable)
                for cell in self._cells
            ]

    def block_costs(self) -> list[BlockCost]:
        """Returns the cost of each block."""
        cells = [flops for is_loss, flops in self._flops if not is_loss]
        # A local loss runs the layers that its block looks ahead to, and its head.
        losses = [flops for is_loss, flops in self._flops if is_loss]
        heads = [
            flops - sum(cells[block.end : block.end + block.ahead])
            for block, flops in zip(self._blocks, losses, strict=False)
        ]
        return block_costs(self._blocks, cells, [*heads, 0])

    def boundaries(self) -> list[Boundary]:
        """Returns boundaries between blocks; of a single block, between its layers.

        Tensors of the mini-batch itself do not cross.
        """
        if len(self._blocks) == 1:
            return [
                Boundary(
                    cell.params.name,
                    num_bytes(tensors),
                    num_bytes(x for x in tensors if x.dtype.is_floating),
                    weights=0,
                )
                for cell, tensors in zip(
                    self._cells[:-1], self._passed_on, strict=False
                )
            ]
        return [self._local_boundary(block) for block in self._blocks[:-1]]

    def _local_boundary(self, block: Block) -> Boundary:
        """Returns the boundary after a block, which no activation's gradient crosses.

        The block receives the weights of the layers that it looks ahead to, and sends
        their gradients back.
        """
        shared = self._weight_bytes[block.end : block.end + block.ahead]
        last = block.end - 1
        forward = num_bytes(self._passed_on[last])
        return Boundary(self._cells[last].params.name, forward, 0, 2 * sum(shared))


def _example_flops(task: BaseTask, inputs: tuple) -> list[tuple[bool, float]]:
    """Returns for each cell whether it is a local loss, and flops for one example.

    Flops of layers before the cells count in the first cell.
    """
    pipeline = task.pipeline
    costs = pipeline_costs(
        [layer.params for layer in pipeline.before],
        [cell.params for cell in pipeline.cells],
        *map_present(lambda x: tuple(x.shape), inputs),
    )
    flops = list(costs.cells.flops)
    flops[0] += costs.prologue
    num_examples = tf.nest.flatten(inputs)[0].shape[pipeline.params.batch_dim]
    return [
        (isinstance(cell, LocalLossLayer), count / num_examples)
        for cell, count in zip(pipeline.cells, flops, strict=True)
    ]


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
