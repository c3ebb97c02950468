"""A training of the study, with comparisons of local gradients and true ones."""

import dataclasses
import math
import multiprocessing
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import numpy as np
import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError
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
    """Calls `train_row` in a separate process, and returns the result.

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

    There are `record_every` steps between records. The first record is before all
    steps, and the last one is after all steps. `moments` are numbers of steps after
    which gradients are compared, on the next batch.

    Raises:
        ValueError: if the scheme cannot train the model, or batches run out.
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
    test_batches = model.test_input().EvalBatches()
    similarity = None
    if key.scheme != BACKPROPAGATION:
        plain_key = dataclasses.replace(key, scheme=BACKPROPAGATION)
        plain = model.task(plain_key, train_input).Instantiate()
        similarity = _gradient_similarity(task, plain)
    records: list[Record] = []
    similarities: list[Similarity] = []
    losses: list[float] = []

    def record(step: int) -> None:
        mean = sum(losses) / len(losses) if losses else None
        losses.clear()
        records.append(Record(step, mean, evaluation(test_batches)))

    next_batches = iter(batches)
    for step in range(model.num_steps):
        batch = next(next_batches, None)
        if batch is None:
            raise UserValueError(
                path=f"TrainBatches with {key.name}",
                expected=f"{model.num_steps} batches, one per step",
                got=step,
                hint="Lower --steps.",
            )
        if step % record_every == 0:
            record(step)
        if step in moments and similarity is not None:
            similarities.append(similarity(step, batch))
        losses.append(float(train_step(batch).loss[0]))
    record(model.num_steps)
    seconds = time.monotonic() - start
    return Row(key, blocks, boundaries, records, similarities, seconds)


def _gradient_similarity(
    local: BaseTask, plain: BaseTask
) -> Callable[[int, NestedMap], Similarity]:
    """Returns a function that compares gradients by blocks and by backpropagation.

    The function gives the task `plain` the weights of `local`. It returns a cosine for
    each layer. Weights that two layers share count with the first layer.
    """
    functions = [_gradient_function(task) for task in (local, plain)]

    def compare(step: int, batch: NestedMap) -> Similarity:
        trained = local.VariablePaths()
        for path, variable in plain.VariablePaths().items():
            variable.assign(trained[path])
        gradients = [f(tf.constant(step, tf.int64), batch) for f in functions]
        local_gradients, true_gradients = (
            {path: x.numpy() for path, x in by_path.items()} for by_path in gradients
        )
        cells = {x.params.name: x.VariablePaths() for x in plain.pipeline.cells}
        cosines = {
            name: cosine(
                local_gradients,
                true_gradients,
                [path for path in paths if path in true_gradients],
            )
            for name, paths in cells.items()
        }
        return Similarity(step, cosines)

    return compare


def _gradient_function(task: BaseTask) -> Any:

    @tf.function(autograph=False)
    def gradients(step: tf.Tensor, batch: NestedMap) -> dict[str, tf.Tensor]:
        with ForwardContext(step=step):
            result = task.ComputeGradients(task.Values(), batch)
        paths = {v.ref(): path for path, v in task.VariablePaths().items()}
        flat = map(tf.nest.flatten, (task.vars, result.gradients))
        pairs = zip(*flat, strict=True)
        return {paths[v.ref()]: g for v, g in pairs if g is not None}

    return gradients


def cosine(
    ours: Mapping[str, np.ndarray],
    others: Mapping[str, np.ndarray],
    paths: Iterable[str],
) -> float | None:
    """Returns the cosine of two gradients for weights `paths`, or None if one is 0."""
    sums = np.zeros(3)  # Products of both, and of each with itself.
    for path in paths:
        a, b = (x[path].astype(np.float64).ravel() for x in (ours, others))
        sums += a @ b, a @ a, b @ b
    product, *squares = sums.tolist()
    length = math.prod(map(math.sqrt, squares))
    return product / length if length else None
