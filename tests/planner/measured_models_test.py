"""Costs are measured for a few sizes of micro-batches; others lie between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.pipeline.splitting.cell_seconds import CellSeconds
from lingvo_pipe.planner import measured_models
from lingvo_pipe.planner.busy_devices import busy_devices
from lingvo_pipe.planner.candidate import candidates
from lingvo_pipe.planner.company import Company
from lingvo_pipe.planner.constraints import Constraints
from lingvo_pipe.planner.device_needs import DeviceNeeds
from lingvo_pipe.planner.evaluation import Evaluated, evaluate
from lingvo_pipe.planner.measured_models import MeasuredModels, plan_measured
from lingvo_pipe.planner.model_costs import ModelCosts
from lingvo_pipe.planner.planning import plan
from lingvo_pipe.planner.resources import Resources
from lingvo_pipe.planner.search import Found
from tests.planner.made_up_model import (
    NUM_CELLS,
    made_up_device,
    made_up_model,
    schedule_of,
)

BATCH_SIZE = 64
RICH = made_up_device(10**9)


class Machine:
    """Traces and times the cells of a made-up model, and keeps account of it.

    Attributes:
        traced: for how many rows, one after another.
        timed: likewise.

    Args:
        fixed: seconds that a cell takes for any number of rows.
        slow: numbers of rows with which they take longer than all others lead one to
            expect.
        most: rows with which its memory has not run out yet.
    """

    num_cells = NUM_CELLS

    def __init__(
        self, fixed: float = 0.5, slow: Sequence[int] = (), most: int = BATCH_SIZE
    ):
        self._most = most
        self.traced: list[int] = []
        self.timed: list[int] = []
        self._fixed, self._slow = fixed, slow

    def trace(self, num_rows: int, counts_flops: bool) -> Any:
        self.traced.append(num_rows)
        costs = made_up_model(num_rows)
        return SimpleNamespace(costs=costs, stage_calls=num_rows, specs={})

    def time(self, num_rows: int, specs: Mapping[int, Any], device: str) -> Any:
        self.timed.append(num_rows)
        if num_rows > self._most:
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating")
        return [self._of(i, num_rows) for i in range(NUM_CELLS + 1)]

    def seconds(self, num_rows: int) -> list[CellSeconds]:
        """Of the cells, the loss being a part of the last."""
        *cells, last, loss = [self._of(i, num_rows) for i in range(NUM_CELLS + 1)]
        both = CellSeconds(last.forward + loss.forward, last.backward + loss.backward)
        return [*cells, both]

    def _of(self, cell: int, num_rows: int) -> CellSeconds:
        seconds = self._fixed + (1 + cell % 3) * num_rows
        if num_rows in self._slow:
            seconds *= 10
        return CellSeconds(seconds, 2 * seconds)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """One on which all sizes take what others lead one to expect."""
    return installed(Machine(), monkeypatch)


def installed(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """The same, measured in place of the real one."""
    monkeypatch.setattr(measured_models, "measured_seconds", machine.time)
    monkeypatch.setattr(measured_models, "measured_company", lambda *_: Company())
    return machine


@pytest.mark.parametrize("sizes", [(1, 64), (2, 8), (64, 4, 1)])
def test_sizes_lie_on_a_line(machine: Machine, sizes: Sequence[int]) -> None:
    models = MeasuredModels(machine, "cpu:0")  # type: ignore[arg-type]
    assert [models.measure(size) for size in sizes] == [True] * len(sizes)
    for rows in (1, 2, 3, 4, 7, 8, 32, 64):
        costs, seconds = models(rows)
        assert costs == made_up_model(rows)
        wanted = machine.seconds(rows)
        assert [pair.forward for pair in seconds] == pytest.approx(
            [pair.forward for pair in wanted]
        )
        assert [pair.backward for pair in seconds] == pytest.approx(
            [pair.backward for pair in wanted]
        )
    assert machine.timed == machine.traced == list(sizes)


def test_between_sizes_the_nearest_two_count(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = installed(Machine(slow=[64]), monkeypatch)
    models = MeasuredModels(machine, "cpu:0")  # type: ignore[arg-type]
    for size in (64, 1, 8):
        models.measure(size)
    assert models(64)[1] == machine.seconds(64)
    for rows, exact in ((4, True), (8, True), (32, False)):
        wanted = [pair.forward for pair in machine.seconds(rows)]
        found = [pair.forward for pair in models(rows)[1]]
        assert (found == pytest.approx(wanted)) == exact


def test_nothing_is_measured_twice(machine: Machine) -> None:
    models = MeasuredModels(machine, "cpu:0")  # type: ignore[arg-type]
    assert models.measure(4)
    assert not models.measure(4)
    assert models(4)[1] == models(8)[1]  # For want of another size.
    assert models(8)[0] == made_up_model(8)  # What it needs is its own.
    assert models(2)[0] == made_up_model(2)
    assert machine.timed == [4]
    assert machine.traced == [4, 8]


@pytest.mark.parametrize("fixed", [0.01, 3.0, 50.0])
@pytest.mark.parametrize("slow", [[], [1, 64], [2, 4, 8], [1, 2, 4, 8, 16, 32]])
def test_the_best_was_measured(
    fixed: float, slow: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So its time is not one that others led to expect."""
    machine = installed(Machine(fixed, slow), monkeypatch)
    found = plan_measured(
        machine,  # type: ignore[arg-type]
        ["cpu:0"],
        Resources(RICH, 4, BATCH_SIZE),
        Constraints(),
    )
    best = found.fastest[0]
    rows = BATCH_SIZE // best.candidate.num_micro_batches
    assert rows in machine.timed
    assert len(machine.timed) == len(set(machine.timed))
    own = evaluate(best.candidate, made_up_model(rows), machine.seconds(rows), RICH)
    assert isinstance(own, Evaluated)
    assert own.step_seconds == best.step_seconds


def test_a_size_that_is_slower_than_expected_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = []
    for slow in ([], [2, 4, 8, 16]):
        machine = installed(Machine(1.0, slow), monkeypatch)
        given = Constraints(num_replicas=1, num_devices=4, schedule="1f1b")
        found = plan_measured(
            machine,  # type: ignore[arg-type]
            ["cpu:0"],
            Resources(RICH, 4, BATCH_SIZE),
            given,
        )
        rows.append(BATCH_SIZE // found.fastest[0].candidate.num_micro_batches)
    assert rows[0] in (2, 4, 8, 16)
    assert rows[1] not in (2, 4, 8, 16)


def test_only_sizes_that_are_allowed_are_measured(machine: Machine) -> None:
    plan_measured(
        machine,  # type: ignore[arg-type]
        ["cpu:0"],
        Resources(RICH, 4, BATCH_SIZE),
        Constraints(num_micro_batches=8),
    )
    assert machine.timed == [BATCH_SIZE // 8]


def test_devices_that_slow_one_another_down_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that computes alone is not slowed down."""
    machine = installed(Machine(), monkeypatch)
    slowed = Company(2, 3.0)
    monkeypatch.setattr(measured_models, "measured_company", lambda *_: slowed)
    seconds = {}
    for number in (1, 2):
        given = Constraints(num_devices=number, num_replicas=1, num_micro_batches=16)
        found = plan_measured(
            machine,  # type: ignore[arg-type]
            ["cpu:0", "cpu:1"],
            Resources(RICH, 2, BATCH_SIZE),
            given,
        )
        best = found.fastest[0]
        rows = BATCH_SIZE // 16
        alone = evaluate(best.candidate, *machine_costs(machine, rows), RICH)
        assert isinstance(alone, Evaluated)
        slower = best.timeline.busy_seconds(0) / alone.timeline.busy_seconds(0)
        seconds[number] = slower / (1 + 2 * (busy_devices(alone.timeline) - 1))
        assert (slower > 1) == (number > 1)
    assert seconds == {1: pytest.approx(1.0), 2: pytest.approx(1.0)}


def machine_costs(
    machine: Machine, num_rows: int
) -> tuple[ModelCosts, list[CellSeconds]]:
    """What the machine would take for cells one by one."""
    return made_up_model(num_rows), machine.seconds(num_rows)


def planned(
    machine: Machine, memory: int, given: Constraints | None = None, number: int = 4
) -> Found:
    """On so many devices of so many bytes."""
    return plan_measured(
        machine,  # type: ignore[arg-type]
        ["cpu:0"],
        Resources(made_up_device(memory), number, BATCH_SIZE),
        given or Constraints(),
    )


FEW = Constraints(num_replicas=1, num_devices=4, num_micro_batches=BATCH_SIZE)


def largest_cell(num_rows: int) -> int:
    """Bytes of the cell that needs most, by itself."""
    costs = made_up_model(num_rows)
    pairs = zip(costs.calls, costs.working, strict=True)
    return max(c.weights + c.totals + c.residuals + work for c, work in pairs)


@pytest.mark.parametrize("memory", [5400, 6000, 7000])
def test_no_size_is_run_of_which_a_cell_does_not_fit(
    machine: Machine, memory: int
) -> None:
    """And what is found is what would be, were all sizes measured."""
    found = planned(machine, memory)
    assert machine.timed
    fitting = [n for n in (1, 2, 4, 8, 16, 32, 64) if largest_cell(n) <= memory]
    assert max(fitting) < BATCH_SIZE
    assert set(machine.timed) <= set(fitting)

    def models(num_rows: int) -> tuple[ModelCosts, list[CellSeconds]]:
        return machine_costs(machine, num_rows)

    wanted = plan(
        models, Resources(made_up_device(memory), 4, BATCH_SIZE), Constraints()
    )
    assert found.fastest[0].step_seconds == wanted.fastest[0].step_seconds


@pytest.mark.parametrize("most", [1, 2, 4, 32])
def test_sizes_with_which_memory_runs_out_are_not_chosen(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though by what is counted they fit, and by what they take they would be best."""
    machine = installed(Machine(50.0, most=most), monkeypatch)
    found = planned(machine, 10**9)
    assert max(machine.timed) > most
    for each in found.fastest:
        assert BATCH_SIZE // each.candidate.num_micro_batches <= most
    best = BATCH_SIZE // found.fastest[0].candidate.num_micro_batches
    assert best in machine.timed
    assert len(machine.timed) == len(set(machine.timed))


def test_where_memory_always_runs_out_nothing_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = installed(Machine(most=0), monkeypatch)
    told = r"\bGPU\b.*recompute=.*\b1 rows?\b"
    with pytest.raises(ValueError, match=told) as error:
        planned(machine, 10**9, FEW)
    assert str(error.value).endswith("OOM when allocating")
    assert machine.timed == [1]


def test_where_no_cell_fits_nothing_is_run(machine: Machine) -> None:
    with pytest.raises(ValueError, match=r"\bGPU\b.*\bM=64\b.*recompute="):
        planned(machine, largest_cell(1) - 1, FEW)
    assert machine.timed == []


def test_what_is_advised_where_one_size_is_allowed_goes_by_what_others_need(
    machine: Machine,
) -> None:
    """Fewer rows, of which a micro-batch has fewer: they need less."""
    given = Constraints(num_micro_batches=1, num_replicas=1)
    least = min(
        DeviceNeeds(each, made_up_model(BATCH_SIZE), schedule_of(each)).least()
        for each in candidates(1, NUM_CELLS, BATCH_SIZE)
        if each.num_micro_batches == 1
    )
    with pytest.raises(ValueError, match=r"recompute=.*\b32 rows\b"):
        planned(machine, least - 1, given, number=1)
    assert set(machine.timed) <= {BATCH_SIZE}


def test_memory_may_run_out_where_all_devices_compute(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def company(tracer: Any, traced: Any, devices: Sequence[str], _: Any) -> Company:
        asked.append(traced.stage_calls)
        if traced.stage_calls > 1:
            raise tf.errors.ResourceExhaustedError(None, None, "OOM")
        return Company()

    monkeypatch.setattr(measured_models, "measured_company", company)
    found = planned(machine, 10**9)
    assert asked[0] > 1
    assert asked[-1] == 1
    best = found.fastest[0].candidate
    assert BATCH_SIZE // best.num_micro_batches < asked[0]
