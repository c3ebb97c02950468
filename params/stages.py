"""Stages of registered models: of even flops, or blocks trained by local losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.pipeline.splitting.balance import balanced_boundaries
from lingvo_pipe.pipeline.splitting.cell_costs import cell_costs

# A divisor of the usual numbers of steps between reports and between checkpoints.
_STEPS_PER_LOOP = 10


def even_stages(
    cells: Sequence[InstantiableParams], num_stages: int, *shapes: Any
) -> int | list[int]:
    """Returns `splits` of a pipeline: the stage boundaries, or 1 for a single stage.

    Args:
        cells: params of the layers.
        num_stages: K.
        *shapes: shapes of an example's inputs; see `cell_costs`.
    """
    if num_stages == 1:
        return 1  # A list would contradict --devices=2.
    costs = cell_costs(cells, *shapes)
    return balanced_boundaries(costs.flops, num_stages, costs.passed_on)


def in_blocks(task: InstantiableParams, num_blocks: int) -> InstantiableParams:
    """Trains each block of a task's cells by a local loss, on a device of its own.

    No gradient passes between blocks, so a device keeps one micro-batch at a time and
    recomputes nothing. Several steps run in one call, in which no block waits for a
    later one.

    Args:
        task: params of a BaseTask, changed and returned.
        num_blocks: number of blocks, with numbers of cells as even as possible.
    """
    task.local.Set(scheme="chunked", chunks=num_blocks)
    task.pipeline.Set(splits=num_blocks, schedule="local", recompute="never")
    task.train.steps_per_loop = _STEPS_PER_LOOP
    return task
