"""One training of the study, and its local gradients compared with true ones."""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import numpy as np
import tensorflow as tf

from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.devices.stage_devices import initialize_devices
from lingvo_pipe.training.eval.evaluation import Evaluation
from lingvo_pipe.training.step.train_step import TrainStep
from lingvo_pipe.training.task.base_task import BaseTask
from lingvo_pipe.training.task.task_params import BACKPROPAGATION
from tools.local_study.model_shape import ModelShape
from tools.local_study.studied_model import StudiedModel
from tools.local_study.study_rows import Record, Row, RowKey, Similarity


def train_in_own_process(
    model: StudiedModel, key: RowKey, record_every: int, moments: Collection[int]
) -> Row:
    """Calls `train_row` in a process that ends with it.

    TensorFlow keeps unused graphs: a gigabyte after training a small AmoebaNet. So a
    study of any length needs only the memory of one training.

    Raises:
        ChildProcessError: if the process was killed.
    """
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, initialize_devices, (1,)) as pool:
        try:
            return pool.submit(train_row, model, key, record_every, moments).result()
        except BrokenProcessPool as error:
            raise ChildProcessError(
                f"The process that trained with {key.name} was killed, perhaps because "
                "memory ran out. Earlier trainings are saved; run again to resume."
            ) from error


def train_row(
    model: StudiedModel,
    key: RowKey,
    record_every: int,
    moments: Collection[int],
) -> Row:
    """Trains a model with its own learner, from initial values to the last step.

    Args:
        model: the model.
        key: scheme, batch size and seed.
        record_every: steps between records; there is also one before the first step and
            one after the last.
        moments: numbers of steps after which gradients are compared, on the next
            step's batch; below the last step.

    Raises:
        ValueError: if the model cannot be trained in this way, or batches run out.
        FloatingPointError: if a step's loss or gradients are not finite.
    """
    start = time.monotonic()
    train_input = model.train_input(key)
    batches = train_input.TrainBatches()
    shape = ModelShape(
        model.task(key, train_input), batches.element_spec, model.blocks(key)
    )
    training = _Training(model, key, train_input, batches.element_spec)
    next_batches = iter(batches)
    for step in range(model.num_steps):
        batch = next(next_batches, None)
        if batch is None:
            raise ValueError(
                f"TrainBatches: expected {model.num_steps} batches, one per step; with "
                f"{key.name} got {step}. Lower --steps."
            )
        if step % record_every == 0:
            training.record(step)
        if step in moments:
            training.compare(step, batch)
        training.step(batch)
    training.record(model.num_steps)
    return Row(
        key,
        shape.block_costs(),
        shape.boundaries(),
        training.records,
        training.similarities,
        time.monotonic() - start,
    )


class _Training:
    """A task in training, with its records so far."""

    def __init__(
        self, model: StudiedModel, key: RowKey, train_input: Any, element_spec: Any
    ):
        task = model.task(key, train_input).Instantiate()
        self.records: list[Record] = []
        self.similarities: list[Similarity] = []
        self._step = TrainStep(task)
        self._step.Trace(element_spec)
        self._test_input = model.test_input()
        self._evaluation = Evaluation(task, self._step.EvalValues)
        self._losses: list[float] = []
        self._similarity = None
        if key.scheme != BACKPROPAGATION:
            plain = model.plain_task(key, train_input).Instantiate()
            self._similarity = GradientSimilarity(task, plain)

    def step(self, batch: NestedMap) -> None:
        """Trains on a batch."""
        self._losses.append(float(self._step(batch).loss[0]))

    def record(self, step: int) -> None:
        """Evaluates after a number of steps."""
        losses, self._losses = self._losses, []
        mean = sum(losses) / len(losses) if losses else None
        test = self._evaluation(self._test_input.EvalBatches())
        self.records.append(Record(step, mean, test))

    def compare(self, step: int, batch: NestedMap) -> None:
        """Compares gradients, if blocks have losses of their own."""
        if self._similarity is not None:
            self.similarities.append(self._similarity(step, batch))


class GradientSimilarity:
    """Compares gradients of a task trained by blocks and trained as a whole.

    Both have the same weights, batch and random numbers, which are functions of the
    step and of layers' paths. A gradient is over all weights of a layer, before weight
    decay and clipping. Weights that two layers share count with the first.

    Args:
        local: the task with local losses.
        plain: the same task without.
    """

    def __init__(self, local: BaseTask, plain: BaseTask):
        self._local, self._plain = local, plain
        self._compute = [_gradient_function(task) for task in (local, plain)]

    def __call__(self, step: int, batch: NestedMap) -> Similarity:
        """Compares gradients of a batch at the local task's weights after `step`."""
        trained = self._local.VariablePaths()
        for path, variable in self._plain.VariablePaths().items():
            variable.assign(trained[path])
        step_tensor = tf.constant(step, tf.int64)
        local, plain = (
            {path: x.numpy() for path, x in compute(step_tensor, batch).items()}
            for compute in self._compute
        )
        return Similarity(
            step,
            {
                cell.params.name: cosine(
                    local, plain, [p for p in cell.VariablePaths() if p in plain]
                )
                for cell in self._plain.pipeline.cells
            },
        )


def _gradient_function(task: BaseTask) -> Any:
    """Returns a function from step and batch to a task's gradients by path."""

    @tf.function(autograph=False)
    def gradients(step: tf.Tensor, batch: NestedMap) -> dict[str, tf.Tensor]:
        with ForwardContext(step=step):
            result = task.ComputeGradients(task.Values(), batch)
        paths = {v.ref(): path for path, v in task.VariablePaths().items()}
        pairs = zip(
            tf.nest.flatten(task.vars), tf.nest.flatten(result.gradients), strict=True
        )
        return {paths[v.ref()]: g for v, g in pairs if g is not None}

    return gradients


def cosine(
    ours: Mapping[str, np.ndarray],
    others: Mapping[str, np.ndarray],
    paths: Iterable[str],
) -> float | None:
    """Returns the cosine of two gradients, each given as several arrays.

    Arrays are by their variables' paths; only `paths` count. The cosine is None without
    paths, or if a gradient is 0.
    """
    product = our_square = other_square = 0.0
    for path in paths:
        a, b = (x[path].astype(np.float64).ravel() for x in (ours, others))
        product += float(a @ b)
        our_square += float(a @ a)
        other_square += float(b @ b)
    length = math.sqrt(our_square) * math.sqrt(other_square)
    return product / length if length else None
