"""How alike the gradients of local losses and those of backpropagation are."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from lingvo_pipe.layers.forward_context import ForwardContext
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.base_task import BaseTask
from tools.local_study.cosine import cosine
from tools.local_study.study_rows import Similarity


class GradientSimilarity:
    """Compares a task that is trained block by block with the same one as a whole.

    Both have the same weights, batch and random numbers, which are functions of the
    step and of layers' paths. A gradient is that of all weights of a layer, before
    weight decay and clipping. Weights that two layers share count with the first.

    Args:
        local: the task with local losses.
        plain: the same without.
    """

    def __init__(self, local: BaseTask, plain: BaseTask):
        self._local, self._plain = local, plain
        self._compute = [
            tf.function(_Gradients(task), autograph=False) for task in (local, plain)
        ]

    def __call__(self, step: int, batch: NestedMap) -> Similarity:
        """Compares with the local task's present weights.

        Args:
            step: how many steps it was trained.
            batch: to compute the gradients of.
        """
        trained = self._local.VariablePaths()
        for path, variable in self._plain.VariablePaths().items():
            variable.assign(trained[path])
        at = tf.constant(step, tf.int64)
        local, plain = (_numpy(compute(at, batch)) for compute in self._compute)
        return Similarity(
            step,
            {
                cell.params.name: cosine(
                    local, plain, [p for p in cell.VariablePaths() if p in plain]
                )
                for cell in self._plain.pipeline.cells
            },
        )


class _Gradients:
    """A task's gradients by the variables' paths, as a function to trace."""

    def __init__(self, task: BaseTask):
        self._task = task

    def __call__(self, step: tf.Tensor, batch: NestedMap) -> dict[str, tf.Tensor]:
        task = self._task
        with ForwardContext(step=step):
            result = task.ComputeGradients(task.Values(), batch)
        paths = {v.ref(): path for path, v in task.VariablePaths().items()}
        pairs = zip(
            tf.nest.flatten(task.vars), tf.nest.flatten(result.gradients), strict=True
        )
        return {paths[v.ref()]: g for v, g in pairs if g is not None}


def _numpy(gradients: dict[str, Any]) -> dict[str, np.ndarray]:
    return {path: gradient.numpy() for path, gradient in gradients.items()}
