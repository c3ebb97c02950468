"""Costs are measured for a few sizes of micro-batches and interpolated between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.pipeline.splitting.cell_costs import CellSeconds
from lingvo_pipe.planner.costs.device_needs import DeviceNeeds
from lingvo_pipe.planner.costs.model_costs import ModelCosts
from lingvo_pipe.planner.measured import measured_models
from lingvo_pipe.planner.measured.measured_models import MeasuredModels, plan_measured
from lingvo_pipe.planner.resources.candidate import candidates
from lingvo_pipe.planner.resources.device_model import Contention
from lingvo_pipe.planner.resources.resources import Constraints, Resources
from lingvo_pipe.planner.search.candidate_evaluation import Evaluation, evaluate
from lingvo_pipe.planner.search.correction import Correction
from lingvo_pipe.planner.search.fastest_candidates import SearchResult
from lingvo_pipe.planner.search.fitting_plan import NothingFits, plan
from tests.planner.made_up_machine import BATCH_SIZE, Machine, installed
from tests.planner.made_up_model import (
    NUM_CELLS,
    made_up_device,
    made_up_model,
    schedule_of,
)
from tests.support.cases import exhaustive

RICH = made_up_device(10**9)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Returns a machine on which the seconds of all sizes lie on a line."""
    return installed(Machine(), monkeypatch)


@pytest.mark.parametrize("sizes", [(1, 64), (2, 8), (64, 4, 1)])
def test_sizes_lie_on_a_line(machine: Machine, sizes: Sequence[int]) -> None:
    models = MeasuredModels(machine, "cpu:0")  # type: ignore[arg-type]
    assert [models.measure(size) for size in sizes] == [True] * len(sizes)
    for rows in (1, 2, 3, 4, 7, 8, 32, 64):
        costs, seconds = models(rows)
        assert costs == made_up_model(rows)
        expected = machine.seconds(rows)
        assert [pair.forward for pair in seconds] == pytest.approx(
            [pair.forward for pair in expected]
        )
        assert [pair.backward for pair in seconds] == pytest.approx(
            [pair.backward for pair in expected]
        )
    assert machine.timed == machine.traced == list(sizes)


def test_between_sizes_the_nearest_two_are_interpolated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = installed(Machine(slow=[64]), monkeypatch)
    models = MeasuredModels(machine, "cpu:0")  # type: ignore[arg-type]
    for size in (64, 1, 8):
        models.measure(size)
    assert models(64)[1] == machine.seconds(64)
    for rows, exact in ((4, True), (8, True), (32, False)):
        expected = [pair.forward for pair in machine.seconds(rows)]
        found = [pair.forward for pair in models(rows)[1]]
        assert (found == pytest.approx(expected)) == exact


def test_no_size_is_measured_twice(machine: Machine) -> None:
    models = MeasuredModels(machine, "cpu:0")  # type: ignore[arg-type]
    assert models.measure(4)
    assert not models.measure(4)
    assert models(4)[1] == models(8)[1]  # There is no other size.
    assert models(8)[0] == made_up_model(8)  # The costs are its own.
    assert models(2)[0] == made_up_model(2)
    assert machine.timed == [4]
    assert machine.traced == [4, 8]


@pytest.mark.parametrize("fixed", [0.01, 3.0, 50.0])
@pytest.mark.parametrize("slow", [[], [1, 64], [2, 4, 8], [1, 2, 4, 8, 16, 32]])
def test_the_best_size_is_measured(
    fixed: float, slow: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So its time is not interpolated."""
    machine = installed(Machine(fixed, slow), monkeypatch)
    found = planned(machine, 10**9)
    best = found.fastest[0]
    rows = BATCH_SIZE // best.candidate.num_micro_batches
    assert rows in machine.timed
    assert len(machine.timed) == len(set(machine.timed))
    devices = [RICH] * best.candidate.num_devices
    own = evaluate(best.candidate, made_up_model(rows), machine.seconds(rows), devices)
    assert isinstance(own, Evaluation)
    assert own.step_seconds == best.step_seconds


def test_a_size_that_is_slower_than_interpolated_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = []
    for slow in ([], [2, 4, 8, 16]):
        machine = installed(Machine(1.0, slow), monkeypatch)
        constraints = Constraints(num_replicas=1, num_devices=4, schedule="1f1b")
        found = planned(machine, 10**9, constraints)
        rows.append(BATCH_SIZE // found.fastest[0].candidate.num_micro_batches)
    assert rows[0] in (2, 4, 8, 16)
    assert rows[1] not in (2, 4, 8, 16)


def test_only_allowed_sizes_are_measured(machine: Machine) -> None:
    planned(machine, 10**9, Constraints(num_micro_batches=8))
    assert machine.timed == [BATCH_SIZE // 8]


@pytest.mark.exhaustive
def test_devices_have_the_contention_of_real_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = installed(Machine(), monkeypatch)
    slowed = Correction(contention=Contention(2, 3.0))
    monkeypatch.setattr(measured_models, "measured_correction", lambda *_: slowed)
    best = planned(machine, 10**9).fastest[0]
    assert {device.contention for device in best.devices} == {slowed.contention}


@pytest.mark.parametrize("limit", [None, 10**8])
def test_a_plan_within_a_limit_is_within_it_by_peak_bytes(
    limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the trainer takes it, however little the allocator lost in a real step."""
    machine = installed(Machine(), monkeypatch)
    found = Correction(allocator_loss=0.0)
    monkeypatch.setattr(measured_models, "measured_correction", lambda *_: found)
    models = MeasuredModels(machine, "cpu:0")  # type: ignore[arg-type]
    models.measure(4)
    models.correct(["cpu:0"], Resources((RICH,), BATCH_SIZE, memory_limit=limit))
    least = made_up_model(4).memory.minimum(0, NUM_CELLS)
    assert (models(4)[0].memory.minimum(0, NUM_CELLS) == least) == (limit is not None)


def test_times_are_corrected_by_real_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both passes of each cell, and what a step takes outside of them."""
    machine = installed(Machine(), monkeypatch)
    rest = Contention(2, 1.0, 100.0, 100.0)
    found = {}
    for name, given in {
        "alone": Correction(),
        "in a step": Correction(2.0, 2.0, rest),
    }.items():
        monkeypatch.setattr(
            measured_models, "measured_correction", lambda *_, x=given: x
        )
        constraints = Constraints(
            num_devices=1, num_replicas=1, num_micro_batches=16, schedule="1f1b"
        )
        found[name] = planned(machine, 10**9, constraints, number=1).fastest[0]
    before, after = found["alone"], found["in a step"]
    assert after.timeline.busy_seconds(0) == pytest.approx(
        2 * before.timeline.busy_seconds(0)
    )
    assert after.step_seconds - after.timeline.step_seconds == pytest.approx(
        100 + before.step_seconds - before.timeline.step_seconds
    )


def machine_costs(
    machine: Machine, num_rows: int
) -> tuple[ModelCosts, list[CellSeconds]]:
    """Returns the machine's costs and seconds, without contention."""
    return made_up_model(num_rows), machine.seconds(num_rows)


def planned(
    machine: Machine,
    memory: int,
    constraints: Constraints | None = None,
    number: int = 4,
) -> SearchResult:
    """Plans for this many devices, with this many bytes each."""
    return plan_measured(
        machine,  # type: ignore[arg-type]
        ["cpu:0"],
        Resources((made_up_device(memory),) * number, BATCH_SIZE),
        constraints or Constraints(),
    )


FEW = Constraints(num_replicas=1, num_devices=4, num_micro_batches=BATCH_SIZE)


def largest_cell(num_rows: int) -> int:
    """Returns the bytes of the largest cell alone."""
    costs = made_up_model(num_rows)
    return max(costs.memory.minimum(i, i + 1) for i in range(NUM_CELLS + 1))


@pytest.mark.parametrize("memory", [8000, *map(exhaustive, [7000, 9500])])
def test_no_size_is_run_with_which_a_cell_does_not_fit(
    machine: Machine, memory: int
) -> None:
    """The plan is the same as if all sizes were measured."""
    found = planned(machine, memory)
    assert machine.timed
    fitting = [n for n in (1, 2, 4, 8, 16, 32, 64) if largest_cell(n) <= memory]
    assert max(fitting) < BATCH_SIZE
    assert set(machine.timed) <= set(fitting)

    def models(num_rows: int) -> tuple[ModelCosts, list[CellSeconds]]:
        return machine_costs(machine, num_rows)

    expected = plan(
        models, Resources((made_up_device(memory),) * 4, BATCH_SIZE), Constraints()
    )
    assert found.fastest[0].step_seconds == expected.fastest[0].step_seconds


@pytest.mark.parametrize("most", [2, *map(exhaustive, [1, 4, 32])])
def test_sizes_with_which_memory_runs_out_are_not_planned(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not, though by tracing they fit, and by their seconds are the best."""
    machine = installed(Machine(50.0, most=most), monkeypatch)
    found = planned(machine, 10**9)
    assert max(machine.timed) > most
    for each in found.fastest:
        assert BATCH_SIZE // each.candidate.num_micro_batches <= most
    best = BATCH_SIZE // found.fastest[0].candidate.num_micro_batches
    assert best in machine.timed
    assert len(machine.timed) == len(set(machine.timed))


def test_if_memory_always_runs_out_nothing_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = installed(Machine(most=0), monkeypatch)
    words = r"\bGPU\b.*recompute=.*\b1 rows?\b"
    with pytest.raises(NothingFits, match=words) as error:
        planned(machine, 10**9, FEW)
    assert str(error.value).endswith("OOM when allocating")
    assert machine.timed == [1]


def test_if_no_cell_fits_nothing_is_run(machine: Machine) -> None:
    with pytest.raises(NothingFits, match=r"\bGPU\b.*\bM=64\b.*recompute="):
        planned(machine, largest_cell(1) - 1, FEW)
    assert machine.timed == []


def test_suggestions_know_the_needs_of_sizes_that_are_not_allowed(
    machine: Machine,
) -> None:
    """With fewer rows, a micro-batch has fewer rows and needs less."""
    constraints = Constraints(num_micro_batches=1, num_replicas=1)
    limit = min(
        DeviceNeeds(each, made_up_model(BATCH_SIZE), schedule_of(each)).min_limit()
        for each in candidates(1, NUM_CELLS, BATCH_SIZE)
        if each.num_micro_batches == 1
    )
    with pytest.raises(NothingFits, match=r"recompute=.*\b32 rows\b"):
        planned(machine, limit - 1, constraints, number=1)
    assert set(machine.timed) <= {BATCH_SIZE}


@pytest.mark.parametrize("runs_out", [True, False])
def test_a_smaller_real_step_may_fit(
    runs_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A size with which memory runs out is not planned either."""
    machine, asked = installed(Machine(), monkeypatch), []

    def correct(_: Any, devices: Any, model: ModelCosts, *others: Any) -> Any:
        asked.append(model.num_rows)
        if runs_out and model.num_rows > 1:
            raise tf.errors.ResourceExhaustedError(None, None, "OOM")
        return Correction() if model.num_rows == 1 else None

    monkeypatch.setattr(measured_models, "measured_correction", correct)
    best = planned(machine, 10**9).fastest[0].candidate
    assert asked == sorted(asked, reverse=True)
    assert asked[-1] == 1 < asked[0] < BATCH_SIZE
    assert not runs_out or BATCH_SIZE // best.num_micro_batches < asked[0]
