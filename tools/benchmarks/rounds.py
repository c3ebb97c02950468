"""Rounds of measurements, each of which measures every configuration once.

A machine's speed changes within minutes. So only measurements of the same round are
compared, and the configurations of a group run their steps in turns. Every second round
has the reverse order, so that a drift of the speed favors no configuration.
"""

import math
from collections.abc import Callable, Mapping, Sequence

from tools.benchmarks.configuration import Configuration
from tools.benchmarks.exchange import Report, Request

Round = Mapping[Configuration, Report]

# By dtype. bfloat16 has 8 significant bits, so its weights lose small updates.
_LOSS_TOLERANCES = {"float32": 1e-4, "bfloat16": 2e-3, "pure bfloat16": 1e-2}


def measure_rounds(
    groups: Sequence[Sequence[Configuration]],
    num_rounds: int,
    num_steps: int,
    cores: Sequence[int],
    run: Callable[[Sequence[Request]], list[Report]],
    log: Callable[[str], None],
) -> list[Round]:
    """Measures every configuration once a round.

    `run` measures a group of configurations, whose steps run in turns. A pipeline gets
    as many cores as it has devices. `log` takes lines about the progress.

    Raises:
        RuntimeError: if configurations of the same model compute different losses.
    """
    rounds: list[Round] = []
    number = sum(map(len, groups))
    for i in range(num_rounds):
        measured: dict[Configuration, Report] = {}
        direction = -1 if i % 2 else 1
        for group in groups[::direction]:
            requests = [
                Request(
                    configuration,
                    num_steps=0 if configuration.only_start else num_steps,
                    with_peak=i == 0,
                    cores=tuple(cores[: configuration.num_devices]),
                )
                for configuration in group[::direction]
            ]
            for request, report in zip(requests, run(requests), strict=True):
                measured[request.configuration] = report
                done = f"{len(measured)} of {number}: {request.configuration.name}"
                log(f"round {i + 1} of {num_rounds}, {done}: {_summary(report)}")
        _check_losses(measured)
        rounds.append(measured)
    return rounds


def _summary(report: Report) -> str:
    steps = ", ".join(f"{seconds:.3f}" for seconds in report.step_seconds)
    details = f", steps {steps}; others used {report.other_cores:.1f} cores"
    return f"start {report.start_seconds:.2f} s{details if steps else ''}"


def _check_losses(measured: Round) -> None:
    first: dict[tuple, tuple[Configuration, float]] = {}
    for configuration, report in measured.items():
        assert report.loss is not None
        num_steps = (1 + len(report.step_seconds)) * configuration.steps_per_call
        precision = configuration.precision
        key = configuration.workload, configuration.num_blocks, num_steps, precision
        reference, loss = first.setdefault(key, (configuration, report.loss))
        tolerance = max(_LOSS_TOLERANCES[c.dtype] for c in (configuration, reference))
        if not math.isclose(loss, report.loss, rel_tol=tolerance):
            raise RuntimeError(
                "Cannot compare configurations with different losses: "
                f"{configuration.name} has {report.loss}, {reference.name} has {loss}."
            )
