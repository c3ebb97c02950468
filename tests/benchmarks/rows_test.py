"""Rounds of measurements, and the rows and tables made of them."""

import dataclasses
from collections.abc import Sequence
from statistics import median

import pytest

from tools.benchmarks.configuration import Configuration, Dtype
from tools.benchmarks.exchange import Report, Request, merge
from tools.benchmarks.rounds import Round, measure_rounds
from tools.benchmarks.rows import (
    Row,
    format_best_peers,
    format_predictions,
    format_traffic,
    make_rows,
)
from tools.benchmarks.standard_configurations import standard_configurations

pytestmark = pytest.mark.exhaustive  # Only developers run the tool.

GROUPS = standard_configurations(2)
CONFIGURATIONS = [c for group in GROUPS for c in group]


def _rounds(num_rounds: int, loss_of: dict[str, float] | None = None) -> list[Round]:
    """Measures on a machine whose speed changes from each step to the next."""
    runs = iter(range(1, 1000))

    def run(requests: Sequence[Request]) -> list[Report]:
        return [report(request) for request in requests]

    def report(request: Request) -> Report:
        i = next(runs)
        configuration = request.configuration
        num_predicted = request.num_steps - 1 if configuration.is_predicted else 0
        steps = [1 + (7 * i + 3 * j) % 11 for j in range(request.num_steps)]
        return Report(
            start_seconds=i % 5 + 1,
            step_seconds=list(map(float, steps)),
            peak_bytes_by_stage=[i] * configuration.num_stages,
            loss=(loss_of or {}).get(configuration.system, 0.25),
            other_cores=i / 10,
            prediction_errors=[(i + 7 * j) % 11 / 100 for j in range(num_predicted)],
            bytes_by_shapes=2**20 if configuration.placement == "workers" else None,
            sent_bytes=[2**20 + i] * 2 if configuration.placement == "workers" else [],
        )

    return measure_rounds(
        GROUPS, num_rounds, 3, cores=[0, 1, 2], run=run, log=lambda text: None
    )


ROWS = make_rows(_rounds(1))


def test_different_losses_cannot_be_compared() -> None:
    with pytest.raises(RuntimeError, match=r"torch .* 0\.3\b.*lingvo_pipe .* 0\.25\b"):
        _rounds(1, loss_of={"torch": 0.3})
    with pytest.raises(RuntimeError, match=r"tensorflow .* 0\.25005\b"):
        _rounds(1, loss_of={"tensorflow": 0.25 * (1 + 2e-4)})


def test_bfloat16_may_differ_more() -> None:
    def measure(other: Configuration, loss: float) -> None:
        measure_rounds(
            [[ours, other]],
            num_rounds=2,
            num_steps=1,
            cores=[0],
            run=lambda requests: [
                Report(1.0, [1.0], None, loss if r.configuration == other else 1.0, 0.0)
                for r in requests
            ],
            log=lambda text: None,
        )

    other = next(c for c in CONFIGURATIONS if c.system == "torch")
    ours = next(c for c in CONFIGURATIONS if c.dtype == "bfloat16")
    tolerated: list[tuple[Dtype, float]] = [("bfloat16", 1e-3), ("pure bfloat16", 5e-3)]
    for dtype, allowed in tolerated:
        half = dataclasses.replace(other, dtype=dtype)
        measure(half, 1 + allowed)
        with pytest.raises(RuntimeError, match=half.name):
            measure(half, 1 + 3 * allowed)


@pytest.mark.parametrize("num_rounds", [1, 2, 5])
def test_ratios_are_of_one_round(num_rounds: int) -> None:
    rounds = _rounds(num_rounds)
    rows = make_rows(rounds)
    for row in rows:
        configuration = row.configuration
        found = {
            row.configuration.on_one_device(): row.speedup,
            _best(rounds, configuration, "torch"): row.step_over_torch,
            _best(rounds, configuration, "tensorflow"): row.step_over_tensorflow,
            configuration.in_process(): row.step_over_in_process,
        }
        for other, spread in found.items():
            if other is None or other == configuration or other not in rounds[0]:
                assert spread is None
                continue
            assert spread is not None
            expected = _ratios(rounds, other, row)
            if other == configuration.on_one_device():
                expected = [1 / x for x in expected]
            assert spread.median == pytest.approx(median(expected))
            assert spread.min == pytest.approx(min(expected))
            assert spread.max == pytest.approx(max(expected))


def _best(
    rounds: list[Round], configuration: Configuration, system: str
) -> Configuration | None:
    """Returns the peer that a row is divided by, or None."""
    if configuration.system != "lingvo_pipe":
        return None
    peers = [
        (median(median(each[c].step_seconds) for each in rounds), i)
        for i, c in enumerate(rounds[0])
        if c.system == system and c.is_peer_of(configuration)
    ]
    return list(rounds[0])[min(peers)[1]] if peers else None


def test_the_slowest_process_counts() -> None:
    reports = [
        Report(3.0, [1.0, 5.0], [10], None, 0.25),
        Report(2.0, [4.0, 2.0], [20], 0.5, 0.5),
    ]
    assert merge(reports) == Report(3.0, [4.0, 5.0], [10, 20], 0.5, 0.75)


def test_the_best_row_of_torch_is_named() -> None:
    rounds = _rounds(2)
    rows = make_rows(rounds)
    best = {row.best_torch for row in rows if row.best_torch}
    assert format_best_peers(rows).splitlines() == sorted(best)
    assert len(best) > 1


def _ratios(rounds: list[Round], other: Configuration, row: Row) -> list[float]:
    return [
        median(measured[row.configuration].step_seconds)
        / median(measured[other].step_seconds)
        for measured in rounds
    ]


def test_every_predicted_step_counts() -> None:
    rounds = _rounds(3)
    rows = make_rows(rounds)
    for row in rows:
        reports = [measured[row.configuration] for measured in rounds]
        errors = [error for report in reports for error in report.prediction_errors]
        found = row.to_dict()
        if errors:
            assert len(errors) == 6
            assert found["prediction_error"] == median(errors)
            assert found["prediction_error_max"] == max(errors)
        else:
            assert found["prediction_error"] is found["prediction_error_max"] is None
    headings, _, *lines = format_predictions(rows).splitlines()
    predicted = [row.prediction_error for row in rows if row.prediction_error]
    timed = [c for c in CONFIGURATIONS if c.is_predicted and not c.only_start]
    assert len(lines) == len(predicted) == len(timed)
    assert headings.count("|") == lines[0].count("|")
    for error, line in zip(predicted, lines, strict=True):
        assert line.split("|")[-3:-1] == [
            f" {error.median:.1%}".ljust(20),
            f" {error.max:.1%}".ljust(9),
        ]


def test_sent_bytes_stand_beside_bytes_by_shapes() -> None:
    rows = make_rows(_rounds(3))
    _, _, *lines = format_traffic(rows).splitlines()
    on_workers = [c for c in CONFIGURATIONS if c.placement == "workers"]
    assert len(lines) == len(on_workers) > 0
    assert all("| 1.00           | 1.00" in line for line in lines)
    assert not format_traffic([row for row in rows if not row.sent_bytes])


def test_the_bound_is_what_the_bubble_leaves() -> None:
    for row in ROWS:
        if row.speedup_bound is not None:
            num_micro_batches = row.configuration.num_micro_batches
            bubble = 1 / (num_micro_batches + 1)  # of two devices
            if row.configuration.num_blocks == 2:
                bubble = 0.0
            assert row.speedup_bound == pytest.approx(2 * (1 - bubble))


def test_the_papers_expression_is_for_recomputed_gpipe() -> None:
    for row in ROWS:
        bytes_by_stage = row.to_dict()["paper_bytes_by_stage"]
        configuration = row.configuration
        policy = configuration.schedule, configuration.recompute, configuration.dtype
        expected = policy == ("gpipe", "always", "float32")
        assert (bytes_by_stage is not None) == expected
        if bytes_by_stage:
            assert len(bytes_by_stage) == configuration.num_stages
