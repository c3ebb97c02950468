"""Larger Keras models trained by plain Keras and by pipelines.

    python -m tools.keras_models.trained_models ResNet50 BERT "BERT LoRA" >> FILE

The command trains the models with these names, and prints a line of JSON for each.
KerasHub's models need `pip install keras-hub`. `results_table` makes the guide's
sections from the lines.
"""

from __future__ import annotations

import gc
import hashlib
import json
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from logging import Handler, LogRecord
from typing import Any, NamedTuple

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


class _Trained(NamedTuple):
    after_first: TrainedModel
    last_bytes: str  # A digest of the weights' bytes after the last step.
    first_seconds: float
    later_seconds: float  # Of one step.


def train(name: str, data: Example) -> Result:
    """Trains a model in each layout and compares the results.

    Bytes are compared after the last step, but numbers after the first step, because a
    deep model enlarges rounding errors in each further step.
    """
    trained: dict[str, _Trained] = {}
    try:
        with _warnings() as warnings:
            for layout in _LAYOUTS:
                trained[layout] = _trained(layout, data)
                gc.collect()  # The largest models fit once into 24 GiB.
    except UserError as error:
        return _result(name, str(error), trained)
    except tf.errors.InvalidArgumentError:
        # CLIP's loss: a micro-batch has fewer texts to choose from.
        if "M=4" in trained or not _names_mixing(warnings):
            raise
        return _result(name, "warned", trained)
    one, two = (trained[layout].last_bytes for layout in ("M=4", "M=4, K=2"))
    plain, whole, parts = (
        trained[layout].after_first for layout in ("plain", "M=1", "M=4")
    )
    outcome = "differs"
    if one == two and _relative(plain, whole) <= CLOSE:
        if _names_mixing(warnings):
            outcome = "warned"
        elif _relative(plain, parts) <= CLOSE:
            outcome = "same"
    return _result(name, outcome, trained)


def _result(name: str, outcome: str, trained: dict[str, _Trained]) -> Result:
    return Result(
        name,
        outcome,
        {layout: x.first_seconds for layout, x in trained.items()},
        {layout: x.later_seconds for layout, x in trained.items()},
    )


def _trained(layout: str, data: Example) -> _Trained:
    keras.utils.set_random_seed(1)
    model, params = data.make_model(), _LAYOUTS[layout]
    start = _cpu_seconds()
    trained: Any = PipelinedModel(model, **params) if params else model
    trained.compile(keras.optimizers.SGD(0.01, 0.9), data.loss)
    fit = {"batch_size": B, "verbose": 0, "shuffle": False}
    trained.fit(data.inputs, data.targets, epochs=1, **fit)
    first_seconds = _cpu_seconds() - start
    variables = [(v.path, np.array(v.numpy())) for v in model.variables]
    start = _cpu_seconds()
    trained.fit(data.inputs, data.targets, epochs=2, **fit)
    later_seconds = (_cpu_seconds() - start) / 2
    digest = hashlib.sha256()
    for v in model.variables:
        digest.update(v.numpy().tobytes())
    return _Trained(
        TrainedModel(layout, variables),
        digest.hexdigest(),
        first_seconds,
        later_seconds,
    )


def _relative(expected: TrainedModel, got: TrainedModel) -> float:
    return max(x.relative for x in differences(expected, got))


def _names_mixing(warnings: list[str]) -> bool:
    return any("micro-batch" in warning for warning in warnings)


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


@contextmanager
def _warnings() -> Iterator[list[str]]:
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
