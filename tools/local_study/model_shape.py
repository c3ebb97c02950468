"""What a model's blocks cost and hand on, from shapes alone: nothing is run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.forward_context import ForwardContext
from lingvo_pipe.layers.local_loss import LocalLossLayer
from lingvo_pipe.layers.sequential import as_args
from lingvo_pipe.local.blocks import Block
from lingvo_pipe.optional_nest import map_present
from lingvo_pipe.pipeline.splitting.cell_costs import pipeline_costs
from lingvo_pipe.training.base_task import BaseTask
from tools.local_study.costs import BlockCost, block_costs
from tools.local_study.study_rows import Boundary


class ModelShape:
    """A task in a scratch graph, where none of its variables exists in memory.

    Args:
        task_params: of the task as it is trained, block by block or as a whole.
        element_spec: of a batch.
        blocks: of its cells, those for local losses not counted.
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
            batch = tf.nest.map_structure(_placeholder, element_spec)
            inputs = tuple(task.PipelineInputs(batch))
            self._flops = _example_flops(task, inputs)
            self._cells = [
                cell
                for cell in task.pipeline.cells
                if not isinstance(cell, LocalLossLayer)
            ]
            self._handed_on = _handed_on(task, self._cells, inputs)
            self._weight_bytes = list(map(_weight_bytes, self._cells))

    def block_costs(self) -> list[BlockCost]:
        """Of each block."""
        cells = [flops for is_loss, flops in self._flops if not is_loss]
        # A local loss runs the layers that its block looks ahead to, and its head.
        losses = [flops for is_loss, flops in self._flops if is_loss]
        heads = [
            flops - sum(cells[block.end : block.end + block.ahead])
            for block, flops in zip(self._blocks, losses, strict=False)
        ]
        return block_costs(self._blocks, cells, [*heads, 0])

    def boundaries(self) -> list[Boundary]:
        """Between blocks; with a single block, between all of its layers.

        What a device can take from the mini-batch itself needs not cross.
        """
        if len(self._blocks) == 1:
            return [
                Boundary(cell.params.name, sum(sizes), _floating_bytes(tensors), 0)
                for cell, tensors in zip(
                    self._cells[:-1], self._handed_on, strict=False
                )
                for sizes in [list(map(_num_bytes, tensors))]
            ]
        return [self._local_boundary(block) for block in self._blocks[:-1]]

    def _local_boundary(self, block: Block) -> Boundary:
        """Behind a block: no gradient of an activation crosses.

        The weights of layers that the block looks ahead to come to it, and their
        gradients go back.
        """
        shared = self._weight_bytes[block.end : block.end + block.ahead]
        last = block.end - 1
        forward = sum(map(_num_bytes, self._handed_on[last]))
        return Boundary(self._cells[last].params.name, forward, 0, 2 * sum(shared))


def _placeholder(spec: Any) -> tf.Tensor:
    return tf.compat.v1.placeholder(spec.dtype, spec.shape)


def _example_flops(task: BaseTask, inputs: tuple) -> list[tuple[bool, float]]:
    """For each cell whether it is a local loss, and its flops for one example.

    Those of layers before the cells are the first cell's.
    """
    pipeline = task.pipeline
    costs = pipeline_costs(
        [layer.params for layer in pipeline.before],
        [cell.params for cell in pipeline.cells],
        *map_present(lambda x: tuple(x.shape), inputs),
    )
    flops = list(costs.cells.flops)
    flops[0] += costs.before
    num_examples = tf.nest.flatten(inputs)[0].shape[pipeline.params.batch_dim]
    return [
        (isinstance(cell, LocalLossLayer), count / num_examples)
        for cell, count in zip(pipeline.cells, flops, strict=True)
    ]


def _handed_on(
    task: BaseTask, cells: Sequence[BaseLayer], inputs: tuple
) -> list[list[tf.Tensor]]:
    """Of each cell the tensors that it hands on, those of the mini-batch left out."""
    known = {id(x) for x in tf.nest.flatten(inputs) if x is not None}
    outputs: Any = inputs
    found = []
    with ForwardContext(do_eval=True):
        for layer in task.pipeline.before:
            outputs = layer.FProp(layer.theta, *as_args(outputs))
        for layer in cells:
            outputs = layer.FProp(layer.theta, *as_args(outputs))
            present = [x for x in tf.nest.flatten(outputs) if x is not None]
            found.append([x for x in present if id(x) not in known])
    return found


def _weight_bytes(layer: BaseLayer) -> int:
    variables = layer.VariablePaths().values()
    return sum(v.dtype.size * math.prod(v.shape) for v in variables if v.trainable)


def _num_bytes(x: tf.Tensor) -> int:
    return x.dtype.size * math.prod(x.shape)


def _floating_bytes(tensors: Sequence[tf.Tensor]) -> int:
    return sum(_num_bytes(x) for x in tensors if x.dtype.is_floating)
