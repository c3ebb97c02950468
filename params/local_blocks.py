"""How registered models are trained block by block instead of by backpropagation."""

from __future__ import annotations

from lingvo_pipe.hyperparams import InstantiableParams

# Divides what is usual from report to report, and from checkpoint to checkpoint.
_STEPS_PER_LOOP = 10


def in_blocks(task: InstantiableParams, num_blocks: int) -> InstantiableParams:
    """Has each block of a task's cells be trained by itself, on a device of its own.

    No gradient goes from block to block, so a device keeps one micro-batch at a time,
    which need not be computed again. Several steps run in one call, in which no block
    waits for another that is behind it.

    Args:
        task: params of a BaseTask, which are changed and returned.
        num_blocks: of as even a number of cells as can be.
    """
    task.local.Set(scheme="chunked", chunks=num_blocks)
    task.pipeline.Set(splits=num_blocks, schedule="local", recompute="never")
    task.train.steps_per_loop = _STEPS_PER_LOOP
    return task
