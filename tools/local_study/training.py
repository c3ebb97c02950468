"""One training of the study, and its local gradients compared with true ones."""

from __future__ import annotations

import dataclasses
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
from tools.local_study.model_shape import model_shape
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
    model: StudiedModel, key: RowKey, record_every: int, moments: Collection[int]
) -> Row:
    """Trains a model with its own learner, from initial values to the last step.

    There are `record_every` steps between records, the first before all steps and one
    after the last. Gradients are compared after `moments` steps, on the next batch.

    Raises:
        ValueError: if the model cannot be trained in this way, or batches run out.
        FloatingPointError: if a step's loss or gradients are not finite.
    """
    start = time.monotonic()
    train_input = model.train_input(key)
    batches = train_input.TrainBatches()
    params = model.task(key, train_input)
    blocks, boundaries = model_shape(params, batches.element_spec, model.blocks(key))
    task = params.Instantiate()
    train_step = TrainStep(task)
    train_step.Trace(batches.element_spec)
    evaluation = Evaluation(task, train_step.EvalValues)
    test_input = model.test_input()
    similarity = None
    if key.scheme != BACKPROPAGATION:
        plain = dataclasses.replace(key, scheme=BACKPROPAGATION)
        similarity = GradientSimilarity(
            task, model.task(plain, train_input).Instantiate()
        )
    records: list[Record] = []
    similarities: list[Similarity] = []
    losses: list[float] = []

    def record(step: int) -> None:
        mean = sum(losses) / len(losses) if losses else None
        losses.clear()
        records.append(Record(step, mean, evaluation(test_input.EvalBatches())))

    next_batches = iter(batches)
    for step in range(model.num_steps):
        batch = next(next_batches, None)
        if batch is None:
            raise ValueError(
                f"TrainBatches: expected {model.num_steps} batches, one per step; with "
                f"{key.name} got {step}. Lower --steps."
            )
        if step % record_every == 0:
            record(step)
        if step in moments and similarity is not None:
            similarities.append(similarity(step, batch))
        losses.append(float(train_step(batch).loss[0]))
    record(model.num_steps)
    seconds = time.monotonic() - start
    return Row(key, blocks, boundaries, records, similarities, seconds)


class GradientSimilarity:
    """Compares the gradients of a task trained by blocks and trained as a whole.

    Both have the same weights, batch and random numbers, which are functions of the
    step and of layers' paths. A gradient is over all weights of a layer, before weight
    decay and clipping. Weights that two layers share count with the first.
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
        cosines = {
            cell.params.name: cosine(
                local, plain, [p for p in cell.VariablePaths() if p in plain]
            )
            for cell in self._plain.pipeline.cells
        }
        return Similarity(step, cosines)


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
    """Returns the cosine of two gradients, given as arrays by variables' paths.

    Only `paths` count. The cosine is None without paths, or if a gradient is 0.
    """
    product = our_square = other_square = 0.0
    for path in paths:
        a, b = (x[path].astype(np.float64).ravel() for x in (ours, others))
        product += float(a @ b)
        our_square += float(a @ a)
        other_square += float(b @ b)
    length = math.sqrt(our_square) * math.sqrt(other_square)
    return product / length if length else None
