"""Larger Keras models trained by plain Keras and by pipelines.

    python -m tools.keras_models.trained_models ResNet50 BERT "BERT LoRA" >> FILE

trains the models of these names, and prints a line of JSON for each. KerasHub's models
need `pip install keras-hub`. `results_table` makes the guide's sections from the lines.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from logging import Handler, LogRecord
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from lingvo_pipe.core.errors import UserError
from lingvo_pipe.keras.pipelined_model import PipelinedModel
from lingvo_pipe.pipeline.devices.stage_devices import initialize_devices
from lingvo_pipe.testing.pipelined_equals_plain import TrainedModel, differences
from tools.keras_models.examples import B, Example, example
from tools.keras_models.results_table import Result

CLOSE = 1e-3  # Relative to an array's largest number; batch norms enlarge rounding.
_LAYOUTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "M=1": {"num_micro_batches": 1, "devices": 1},
    "M=4": {"num_micro_batches": 4, "devices": 1},
    "M=4, K=2": {"num_micro_batches": 4, "devices": 2},
}


def train(name: str, data: Example) -> Result:
    """Trains a model in each layout and compares the results."""
    trained: dict[str, TrainedModel] = {}
    first_step, step = {}, {}
    try:
        with _warnings() as warnings:
            for layout, params in _LAYOUTS.items():
                model, *seconds = _trained(data, params)
                trained[layout] = TrainedModel(layout, model)
                first_step[layout], step[layout] = seconds
    except UserError as error:
        return Result(name, str(error), first_step, step)
    except tf.errors.InvalidArgumentError:
        # CLIP's loss: a micro-batch has fewer texts to choose from.
        if "M=4" in trained or not _names_mixing(warnings):
            raise
        return Result(name, "warned", first_step, step)
    same_bytes = _relative(trained["M=4"], trained["M=4, K=2"]) == 0
    outcome = "differs"
    if same_bytes and _relative(trained["plain"], trained["M=1"]) <= CLOSE:
        if _names_mixing(warnings):
            outcome = "warned"
        elif _relative(trained["plain"], trained["M=4"]) <= CLOSE:
            outcome = "same"
    return Result(name, outcome, first_step, step)


def _trained(data: Example, params: dict[str, Any]) -> tuple[Any, float, float]:
    """Returns (variables, CPU seconds of the first step, and of a later step)."""
    keras.utils.set_random_seed(1)
    model = data.make_model()
    start = _cpu_seconds()
    trained: Any = PipelinedModel(model, **params) if params else model
    trained.compile(keras.optimizers.SGD(0.01, 0.9), data.loss)
    times = [start]
    for epochs in (1, 2):
        trained.fit(data.inputs, data.targets, B, epochs, verbose=0, shuffle=False)
        times.append(_cpu_seconds())
    variables = [(v.path, np.array(v.numpy())) for v in model.variables]
    return variables, times[1] - times[0], (times[2] - times[1]) / 2


def _relative(expected: TrainedModel, got: TrainedModel) -> float:
    return max(x.relative for x in differences(expected, got))


def _names_mixing(warnings: list[str]) -> bool:
    return any("micro-batch" in warning for warning in warnings)


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """Yields a list that collects the warnings logged in this context."""
    lines: list[str] = []

    class Collector(Handler):
        def emit(self, record: LogRecord) -> None:
            lines.append(record.getMessage())

    collector = Collector("WARNING")
    logger = logging.get_absl_logger()
    logger.addHandler(collector)
    try:
        yield lines
    finally:
        logger.removeHandler(collector)


if __name__ == "__main__":
    initialize_devices(2)
    for model_name in sys.argv[1:]:
        result = train(model_name, example(model_name))
        print(json.dumps(result._asdict()), flush=True)
