"""Measures how well the planner predicts steps on this machine: time and memory.

    lingvo_pipe plan_check --model=lm.text.TransformerTiny

Trains a model on synthetic batches, on one and on two CPU devices, in twelve ways, and
prints predictions and measurements. The speed of a machine changes within minutes; so
each round times the cells again, and ratios are formed within a round. Run nothing else
on the machine at the same time.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

import numpy as np

from lingvo_pipe.core.tables import markdown_header, markdown_row
from lingvo_pipe.core.tensorflow_startup import count_cpu_memory, importing_tensorflow

count_cpu_memory()
with importing_tensorflow():
    import tensorflow as tf

    import model_registry
    from lingvo_pipe.pipeline.devices.stage_devices import initialize_devices
    from lingvo_pipe.planner.costs.traced_model import ModelTracer
    from lingvo_pipe.planner.measured.calibration import calibrated_device
    from lingvo_pipe.planner.measured.measured_contention import measured_contention
    from lingvo_pipe.planner.measured.measured_models import MeasuredModels
    from lingvo_pipe.planner.resources.candidate import Candidate
    from lingvo_pipe.planner.search.candidate_evaluation import Evaluation, evaluate
    from lingvo_pipe.tools.plan.plan import at_least_one
    from lingvo_pipe.tools.programs import flag_parser
    from lingvo_pipe.training.profiling.memory_peaks import MemoryWatch
    from lingvo_pipe.training.step.train_step import TrainStep

_VARIANTS = (("gpipe", "always"), ("gpipe", "never"), ("1f1b", "never"))
_CANDIDATES = [
    Candidate(1, num_devices, 1, num_micro_batches, schedule, recompute)
    for num_devices in (1, 2)
    for num_micro_batches in (4, 8)
    for schedule, recompute in _VARIANTS
]
_MIB = 2**20
_STEPS = 5  # Steps of a way in each round; the first one does not count.


def main(arguments: Sequence[str]) -> int:
    """Prints a table, and a summary of it."""
    options = _options(arguments)
    devices = initialize_devices(2)
    params = model_registry.GetParams(options.model, "Train")
    params.FromText(options.model_params_override, separator=";")
    batch_size = options.batch or params.input.batch_size
    spec = tf.nest.map_structure(
        lambda s: tf.TensorSpec([batch_size, *s.shape[1:]], s.dtype),
        params.input.Instantiate().element_spec,
    )
    tracer = ModelTracer(params.task, spec, devices[0])
    batch = tf.nest.map_structure(_synthetic, spec)
    steps: list[TrainStep] = []
    # For each round and way: seconds and bytes, predicted and then measured.
    numbers = np.empty([options.rounds, len(_CANDIDATES), 2, 2])
    for number in range(options.rounds):
        models, known = MeasuredModels(tracer, devices[0]), {}
        calibrated = calibrated_device(devices)
        for i, candidate in enumerate(_CANDIDATES):
            num_rows = batch_size // candidate.num_micro_batches
            if models.measure(num_rows):
                contention = measured_contention(
                    tracer, models.trace(num_rows), devices, models(num_rows)[1]
                )
                known[num_rows] = dataclasses.replace(calibrated, contention=contention)
            device = known[num_rows]
            found = evaluate(candidate, *models(num_rows), device)
            assert isinstance(found, Evaluation)  # The machine has enough memory.
            if number == 0:
                steps.append(_step(params.task, found, devices))
                steps[i](batch)  # Builds the graph.
            predicted = found.step_seconds, sum(found.bytes_by_device)
            numbers[number, i] = predicted, _measure(steps[i], batch, devices)
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
    print("\n".join(_report(numbers)))
    return 0


def _step(task: Any, found: Evaluation, devices: Sequence[str]) -> TrainStep:
    candidate, p = found.candidate, task.Copy()
    p.pipeline.Set(devices=list(devices[: candidate.num_devices]))
    p.pipeline.Set(**candidate.params(found.boundaries))
    return TrainStep(p.Instantiate())


def _synthetic(spec: tf.TensorSpec) -> tf.Tensor:
    """Returns numbers below 1; for integers ones, which most inputs allow."""
    if spec.dtype.is_floating:
        return tf.random.stateless_uniform(spec.shape, [0, 0], dtype=spec.dtype)
    return tf.ones(spec.shape, spec.dtype)


def _measure(step: TrainStep, batch: Any, devices: Sequence[str]) -> tuple[float, int]:
    """Returns the median time of steps, and the memory of the last one in bytes."""
    seconds, watch = [], MemoryWatch(devices, step.State().values())
    watch.peaks()
    for _ in range(_STEPS):
        start = time.perf_counter()
        step(batch)
        seconds.append(time.perf_counter() - start)
        (peak,) = watch.peaks()
    return median(seconds[1:]), peak.num_bytes


def _report(numbers: np.ndarray) -> Iterator[str]:
    """Yields the table's lines, and the summary; see `main` for the numbers."""
    columns = ("predicted, s", "measured, s", "error")
    memory_columns = ("predicted, MiB", "measured, MiB", "error")
    yield from markdown_header(["way", *columns, *memory_columns])
    errors = np.median(numbers[:, :, 0] / numbers[:, :, 1] - 1, axis=0)
    medians = np.median(numbers, axis=0)
    for candidate, pair, error in zip(_CANDIDATES, medians, errors, strict=True):
        yield markdown_row(
            candidate,
            *(f"{seconds:.4f}" for seconds in pair[:, 0]),
            f"{error[0]:+.1%}",
            *(f"{num_bytes / _MIB:.1f}" for num_bytes in pair[:, 1]),
            f"{error[1]:+.1%}",
        )
    chosen, best = np.argmin(medians[:, :, 0], axis=0)
    measured = numbers[:, :, 1, 0]
    behind = np.median(measured[:, chosen] / measured[:, best] - 1)
    time_error, memory_error = np.median(np.abs(errors), axis=0)
    yield (
        f"\nMedian error of the time {time_error:.1%}, of memory {memory_error:.1%}. "
        f"Chosen: {_CANDIDATES[chosen]}, {behind:.1%} behind the best, "
        f"{_CANDIDATES[best]}."
    )


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = flag_parser("lingvo_pipe plan_check", __doc__)
    add = parser.add_argument
    add("--model", required=True, help="name of a registered model")
    add("--model_params_override", default="", help="changes, as in the trainer")
    add("--batch", type=at_least_one, help="rows of a mini-batch; default: the model's")
    add("--rounds", type=at_least_one, default=5, help="number of rounds")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
