"""Slowdown from contention between devices of one machine, measured.

The devices share the machine's memory, its caches, the clock rate that its processor
can hold, and the host that launches their operations.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import tensorflow as tf

from lingvo_pipe.pipeline.devices.device_names import device_name
from lingvo_pipe.pipeline.splitting.cell_costs import CellSeconds
from lingvo_pipe.pipeline.stage_choice.measured_costs import measured_seconds
from lingvo_pipe.planner.costs.traced_model import ModelTracer, TracedModel
from lingvo_pipe.planner.measured.calibration import median_seconds
from lingvo_pipe.planner.resources.device_model import Contention
from lingvo_pipe.training.optim.exponential_moving_average import make_averages
from lingvo_pipe.training.optim.gradient_clipping import global_norm
from lingvo_pipe.training.optim.learner import Learner

_MAX_VARIABLES = 64  # The update of more variables is extrapolated.
_NUM_UPDATES = 9
_VARIABLE_SIZE = 8  # Numbers of each variable.


def measured_contention(
    tracer: ModelTracer,
    traced: TracedModel,
    devices: Sequence[str],
    seconds: Sequence[CellSeconds],
) -> Contention:
    """Times cells on all devices at once, and updates of small variables.

    The seconds of the cells and the loss are without contention.
    """
    update = _update_seconds(tracer, devices[:1])
    if len(devices) == 1:
        return Contention(update_on_one=update, update_on_all=update)
    slowdown = measured_slowdown(traced, devices, seconds)
    return Contention(len(devices), slowdown, update, _update_seconds(tracer, devices))


def measured_slowdown(
    traced: TracedModel, devices: Sequence[str], seconds: Sequence[CellSeconds]
) -> float:
    """Returns the time of cells with contention over `seconds` without, at least 1."""
    if len(devices) == 1:
        return 1.0
    measure = functools.partial(measured_seconds, traced.stage_calls, traced.specs)
    with ThreadPoolExecutor(len(devices)) as pool:
        contended = median(map(_total, pool.map(measure, devices)))
    names = map(device_name, devices)
    here = [name for name in names if name.kind == "CPU" and name.worker is None]
    devices_per_core = len(here) / len(os.sched_getaffinity(0))
    return max(contended / _total(seconds), devices_per_core, 1.0)


def _total(cells: Sequence[CellSeconds]) -> float:
    return sum(cell.forward + cell.backward for cell in cells)


def _update_seconds(tracer: ModelTracer, devices: Sequence[str]) -> float:
    """Returns the seconds to launch the updates of all variables, over the devices."""
    paths = tracer.trained_paths[:_MAX_VARIABLES]
    update = _make_update(tracer, paths, devices)
    update()  # Builds the graph.
    seconds = median_seconds(update, _NUM_UPDATES)
    return seconds * tracer.num_variables / len(paths)


def _make_update(
    tracer: ModelTracer, paths: Sequence[str], devices: Sequence[str]
) -> Callable[[], tf.Tensor]:
    """Returns a function that applies gradients like a step and returns their norm."""
    train, variables = tracer.train_params, {}
    for path, device in zip(paths, itertools.cycle(devices), strict=False):
        with tf.device(device):
            variables[path] = tf.Variable(tf.zeros([_VARIABLE_SIZE]))
    learner = Learner(train, variables, tracer.trained_paths)
    averages = make_averages(train, variables, variables)

    def update() -> tf.Tensor:
        gradients = {path: x.read_value() for path, x in variables.items()}
        norm = global_norm(list(gradients.values()), list(variables.values()))
        learner.Apply(gradients)
        if averages is not None:
            averages.Update(tf.constant(1, tf.int64))
        return norm

    return tf.function(update, autograph=False)
