"""How much devices of one machine take beside one another, measured.

They share its memory, its caches, the clock that its processor can hold, and what
begins their operations.
"""

from __future__ import annotations

import functools
import itertools
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import tensorflow as tf

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.pipeline.devices.device_names import device_name
from lingvo_pipe.pipeline.measured_costs import measured_seconds
from lingvo_pipe.pipeline.splitting.cell_seconds import CellSeconds
from lingvo_pipe.planner.company import Company
from lingvo_pipe.planner.traced_model import ModelTracer, TracedModel
from lingvo_pipe.training.exponential_moving_average import make_averages
from lingvo_pipe.training.gradient_norm import global_norm
from lingvo_pipe.training.learner import Learner

_MOST_VARIABLES = 64  # So many are updated; more take as much each.
_NUM_UPDATES = 9
_SIZE = 8  # Numbers of each.


def measured_company(
    tracer: ModelTracer,
    traced: TracedModel,
    devices: Sequence[str],
    alone: Sequence[CellSeconds],
) -> Company:
    """Times a model's cells on all devices at a time, and updates of small variables.

    Args:
        tracer: of the model.
        traced: of a micro-batch.
        devices: full names.
        alone: what the cells, the loss included, take on one of them.
    """
    update = _update_seconds(tracer, devices[:1])
    if len(devices) == 1:
        return Company(update_alone=update, update_spread=update)
    return Company(
        len(devices),
        measured_slowdown(traced, devices, alone),
        update,
        _update_seconds(tracer, devices),
    )


def measured_slowdown(
    traced: TracedModel, devices: Sequence[str], alone: Sequence[CellSeconds]
) -> float:
    """What all together take for what one takes alone; at least 1.

    Args:
        traced: as of `measured_company`.
        devices: likewise.
        alone: likewise.
    """
    if len(devices) == 1:
        return 1.0
    measure = functools.partial(measured_seconds, traced.stage_calls, traced.specs)
    with ThreadPoolExecutor(len(devices)) as pool:
        together = median(map(_total, pool.map(measure, devices)))
    return max(together / _total(alone), _per_core(devices), 1.0)


def _per_core(devices: Sequence[str]) -> float:
    """How many devices of this machine's CPU share a core."""
    names = map(device_name, devices)
    here = [name for name in names if name.kind == "CPU" and name.worker is None]
    return len(here) / len(os.sched_getaffinity(0))


def _total(cells: Sequence[CellSeconds]) -> float:
    return sum(cell.forward + cell.backward for cell in cells)


def _update_seconds(tracer: ModelTracer, devices: Sequence[str]) -> float:
    """Of all variables that are trained, were they small, and on devices in turn."""
    paths = tracer.trained_paths
    number = min(len(paths), _MOST_VARIABLES)
    update = _update_of(tracer.train_params, paths, paths[:number], devices)
    update()  # Builds it.
    seconds = []
    for _ in range(_NUM_UPDATES):
        before = time.perf_counter()
        update().numpy()
        seconds.append(time.perf_counter() - before)
    return median(seconds) * tracer.num_variables / number


def _update_of(
    train: Params,
    all_paths: Sequence[str],
    paths: Sequence[str],
    devices: Sequence[str],
) -> Callable[[], tf.Tensor]:
    """Does what a step does with some of the gradients; returns their norm."""
    variables = {}
    for path, device in zip(paths, itertools.cycle(devices), strict=False):
        with tf.device(device):
            variables[path] = tf.Variable(tf.zeros([_SIZE]))
    learner = Learner(train, variables, all_paths)
    averages = make_averages(train, variables, variables)

    def update() -> tf.Tensor:
        gradients = {path: x.read_value() for path, x in variables.items()}
        norm = global_norm(list(gradients.values()), list(variables.values()))
        learner.Apply(gradients)
        if averages is not None:
            averages.Update(tf.constant(1, tf.int64))
        return norm

    return tf.function(update, autograph=False)
