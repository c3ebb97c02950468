"""How well the planner predicts steps on this machine: time and memory.

    tools/bazel run //tools/plan:on_this_machine -- --model=lm.text.TransformerTiny

Trains a model on made-up batches, on one and on two CPU devices, in twelve ways, and
prints for each what was predicted and what was measured. The speed of a machine changes
within minutes; so all is done in rounds, in each of which cells are timed anew, and
ratios are formed within a round. Nothing else should run.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from lingvo_pipe.quiet_startup import quiet_startup
from lingvo_pipe.training.counting_allocator import count_cpu_memory

count_cpu_memory()
with quiet_startup():
    import tensorflow as tf

    import model_registry
    from lingvo_pipe.pipeline.devices.stage_devices import initialize_devices
    from lingvo_pipe.planner.calibration import calibrated_device
    from lingvo_pipe.planner.candidate import Candidate
    from lingvo_pipe.planner.evaluation import Evaluated, evaluate
    from lingvo_pipe.planner.measured_models import MeasuredModels
    from lingvo_pipe.planner.plan_report import name_of
    from lingvo_pipe.planner.traced_model import ModelTracer
    from lingvo_pipe.training.memory_peaks import MemoryWatch
    from lingvo_pipe.training.train_step import TrainStep
    from tools.plan.at_least_one import at_least_one

_WAYS = (("gpipe", "always"), ("gpipe", "never"), ("1f1b", "never"))
_MIB = 2**20
_STEPS = 5  # Of a way, in a round; the first, after others' steps, does not count.


class Way:
    """One way to run the model, and what came of it.

    Args:
        candidate: the way.
        step: makes a step of it.
    """

    def __init__(self, candidate: Candidate, step: TrainStep):
        self.candidate, self._step = candidate, step
        self.predicted: list[float] = []
        self.measured: list[float] = []
        self.bytes: list[tuple[int, int]] = []

    def run(self, batch: Any, predicted: Evaluated, devices: Sequence[str]) -> None:
        """Makes steps, and notes what they take beside what was predicted."""
        seconds, watch = [], MemoryWatch(devices, self._step.State().values())
        watch.peaks()
        for _ in range(_STEPS):
            start = time.perf_counter()
            self._step(batch)
            seconds.append(time.perf_counter() - start)
            (peak,) = watch.peaks()
        self.measured.append(median(seconds[1:]))
        self.predicted.append(predicted.step_seconds)
        self.bytes.append((sum(predicted.bytes_by_device), peak.num_bytes))

    @property
    def error(self) -> float:
        """Of the time, in relation to what was measured."""
        pairs = zip(self.predicted, self.measured, strict=True)
        return median(a / b - 1 for a, b in pairs)

    @property
    def memory_error(self) -> float:
        """Likewise of the memory."""
        return median(a / b - 1 for a, b in self.bytes)

    def row(self) -> str:
        """Of the table."""
        planned, taken = (median(each) / _MIB for each in zip(*self.bytes, strict=True))
        return (
            f"| {name_of(self.candidate)} | {median(self.predicted):.4f} | "
            f"{median(self.measured):.4f} | {self.error:+.1%} | {planned:.1f} | "
            f"{taken:.1f} | {self.memory_error:+.1%} |"
        )


def main(arguments: Sequence[str]) -> int:
    """Prints a table, and what it says of the planner."""
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
    batch = tf.nest.map_structure(_made_up, spec)
    ways: list[Way] = []
    for number in range(options.rounds):
        models, known = MeasuredModels(tracer, devices[0]), {}
        calibrated = calibrated_device(devices)
        for i, candidate in enumerate(_candidates()):
            num_rows = batch_size // candidate.num_micro_batches
            if models.measure(num_rows):
                company = models.company(num_rows, devices)
                known[num_rows] = dataclasses.replace(calibrated, company=company)
            device = known[num_rows]
            found = evaluate(candidate, *models(num_rows), device)
            assert isinstance(found, Evaluated)  # The machine has memory enough.
            if number == 0:
                ways.append(Way(candidate, _step(params.task, found, devices, batch)))
            ways[i].run(batch, found, devices)
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
    print("\n".join(_report(ways)))
    return 0


def _candidates() -> Iterator[Candidate]:
    for num_devices in (1, 2):
        for num_micro_batches in (4, 8):
            for schedule, recompute in _WAYS:
                yield Candidate(
                    1, num_devices, 1, num_micro_batches, schedule, recompute
                )


def _step(task: Any, found: Evaluated, devices: Sequence[str], batch: Any) -> TrainStep:
    candidate, p = found.candidate, task.Copy()
    p.pipeline.Set(
        splits=list(found.ends),
        stages_per_device=1,
        num_replicas=1,
        num_micro_batches=candidate.num_micro_batches,
        schedule=candidate.schedule,
        recompute=candidate.recompute,
        devices=list(devices[: candidate.num_devices]),
    )
    step = TrainStep(p.Instantiate())
    step(batch)  # Builds the graph.
    return step


def _made_up(spec: tf.TensorSpec) -> tf.Tensor:
    """Numbers below 1; ones for integers, which are valid as most of what there is."""
    if spec.dtype.is_floating:
        return tf.random.stateless_uniform(spec.shape, [0, 0], dtype=spec.dtype)
    return tf.ones(spec.shape, spec.dtype)


def _report(ways: Sequence[Way]) -> Iterator[str]:
    yield (
        "| way | predicted, s | measured, s | error | predicted, MiB | measured, MiB | "
        "error |"
    )
    yield "|" + " - |" * 7
    yield from (way.row() for way in ways)
    chosen = min(ways, key=lambda way: median(way.predicted))
    best = min(ways, key=lambda way: median(way.measured))
    rounds = zip(chosen.measured, best.measured, strict=True)
    behind = median(a / b - 1 for a, b in rounds)
    yield ""
    yield (
        f"Median error of the time {median(abs(way.error) for way in ways):.1%}, of "
        f"memory {median(abs(way.memory_error) for way in ways):.1%}. Chosen: "
        f"{name_of(chosen.candidate)}, {behind:.1%} behind the best, "
        f"{name_of(best.candidate)}."
    )


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="on_this_machine",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--model", required=True, help="the name of a registered model")
    add("--model_params_override", default="", help="changes, as of the trainer")
    add("--batch", type=at_least_one, help="rows of a mini-batch; else the model's own")
    add("--rounds", type=at_least_one, default=5, help="how often all is measured")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
