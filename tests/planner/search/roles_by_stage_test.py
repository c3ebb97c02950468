"""Stages stash what fits, and the rest of their cells they offload or recompute."""

from __future__ import annotations

import dataclasses
import itertools
import random

import pytest

from lingvo_pipe.pipeline.memory.call_bytes import CallBytes, SharedWeight
from lingvo_pipe.pipeline.schedules.check import check
from lingvo_pipe.planner.costs.device_needs import DeviceNeeds
from lingvo_pipe.planner.costs.flops_time_model import flops_time
from lingvo_pipe.planner.costs.model_costs import ModelCosts
from lingvo_pipe.planner.resources.candidate import Candidate
from lingvo_pipe.planner.resources.device_model import DeviceModel
from lingvo_pipe.planner.resources.resources import Constraints, Resources
from lingvo_pipe.planner.search.candidate_evaluation import Evaluation
from lingvo_pipe.planner.search.fitting_plan import NothingFits, plan
from lingvo_pipe.planner.search.roles_by_stage import RolesByStage
from tests.planner.made_up_model import (
    BATCH_SIZE,
    NUM_CELLS,
    NUM_DEVICES,
    made_up_device,
    made_up_model,
    made_up_models,
    schedule_of,
)

RESIDUALS, VALUE = 1_000, 10
SLOW, FAST = 1e3, 1e8  # Bytes per second to the host.
BOUNDARIES = [4, 8, 12, 16]


def cells(
    number: int, seed: int | None = None, in_values: bool = False, loss: int = 0
) -> ModelCosts:
    """Returns cells whose residuals are all that counts: equal ones, or by seed.

    If `in_values`, the residuals are the cells' inputs and outputs. `loss` are the
    bytes of the loss's residuals.
    """
    draw = random.Random(seed)
    residuals, flops = [0 if in_values else RESIDUALS] * number, [1_000] * number
    weights = [0] * number
    if seed is not None:
        residuals = [draw.randrange(1, RESIDUALS) for _ in residuals]
        flops = [draw.randrange(1, 2_000) for _ in flops]
        weights = [draw.randrange(50) for _ in weights]
    calls = [
        CallBytes(w, w, each, 0, True, [i], [i + 1], [i, i + 1] if in_values else [])
        for i, (each, w) in enumerate(
            zip([*residuals, loss], [*weights, 0], strict=True)
        )
    ]
    return ModelCosts(
        num_rows=1,
        flops=flops,
        num_parameters=[0] * number,
        slot_bytes=[2 * x for x in weights],
        calls=calls,
        value_bytes=dict.fromkeys(
            range(1, number + 1), RESIDUALS if in_values else VALUE
        ),
        allocator_loss=0.0,
    )


def by_stage(
    schedule: str,
    memory: int,
    host_bandwidth: float | None = None,
    seed: int | None = None,
    num_replicas: int = 1,
    in_values: bool = False,
    loss: int = 0,
) -> Evaluation | None:
    """Returns sixteen cells on four devices with eight micro-batches."""
    model = cells(16, seed, in_values, loss)
    device = dataclasses.replace(made_up_device(memory), host_bandwidth=host_bandwidth)
    candidate = Candidate(num_replicas, 4, 1, 8 * num_replicas, schedule, "always")
    seconds = flops_time(model, device, "float32")
    kinds = True, host_bandwidth is not None
    search = RolesByStage(candidate, model, seconds, [device] * 4, *kinds)
    return search.evaluate(BOUNDARIES)


def test_only_stages_with_too_many_micro_batches_recompute() -> None:
    """1F1B's stage k holds 4 - k micro-batches of four cells each."""
    evaluation = by_stage("1f1b", 9 * RESIDUALS)
    assert evaluation is not None
    recomputed, _ = evaluation.candidate.roles(16)
    numbers = [sum(start <= i < start + 4 for i in recomputed) for start in (0, 4, 8)]
    assert numbers == [3, 2, 0]
    assert evaluation.candidate.offload == "never"
    assert max(evaluation.bytes_by_device) <= 9 * RESIDUALS


def test_cells_are_offloaded_as_far_as_copies_hide() -> None:
    fast, slow = (by_stage("1f1b", 13 * RESIDUALS, x) for x in (FAST, SLOW))
    assert fast is not None
    assert slow is not None
    assert fast.candidate.recompute == "never"
    assert fast.candidate.offload
    assert slow.candidate.offload == "never"
    assert fast.step_seconds < slow.step_seconds


def test_inputs_and_outputs_that_are_residuals_are_copied_and_freed() -> None:
    """The first cell's input is the mini-batch's, so the cell frees the least."""
    limit = 16 * RESIDUALS + RESIDUALS // 2
    fast, slow = (by_stage("1f1b", limit, x, in_values=True) for x in (FAST, SLOW))
    assert fast is not None
    assert slow is not None
    assert fast.candidate.recompute == "never"
    assert fast.candidate.offload == (0, 1, 2, 3)
    assert slow.candidate.recompute == (1, 2)
    assert slow.candidate.offload == "never"


def test_residuals_of_the_loss_are_copied_and_freed_with_the_last_cell() -> None:
    """Once that cell seemed as quick to copy as any other."""
    limit, loss = 700 * RESIDUALS, 100 * RESIDUALS
    fast, slow = (by_stage("gpipe", limit, x, loss=loss) for x in (FAST, 4e6))
    assert fast is not None
    assert slow is not None
    assert (fast.candidate.recompute, fast.candidate.offload) == (
        "never",
        (12, 13, 14, 15),
    )
    assert (slow.candidate.recompute, slow.candidate.offload) == ((15,), "never")


def test_what_fits_has_no_other_roles() -> None:
    assert by_stage("1f1b", 100 * RESIDUALS) is None
    assert by_stage("1f1b", RESIDUALS) is None  # Not one cell fits.


def planned(
    seed: int, host_bandwidth: float | None, constraints: Constraints
) -> tuple[DeviceModel, list[Evaluation]]:
    """Returns the plans of a made-up model on devices with little memory."""
    memory = 3_000 + 250 * seed
    device = dataclasses.replace(made_up_device(memory), host_bandwidth=host_bandwidth)
    resources = Resources((device,) * NUM_DEVICES, BATCH_SIZE)
    try:
        result = plan(made_up_models(device, seed), resources, constraints)
    except NothingFits:
        return device, []
    return device, list(result.fastest)


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_random_cells_fit_in_their_roles(schedule: str, seed: int) -> None:
    draw = random.Random(seed)
    memory = draw.randrange(2 * RESIDUALS, 8 * RESIDUALS)
    bandwidth = draw.choice([None, 1e5, 3e5, 1e6, 1e7])
    num_replicas = draw.choice([1, 2])
    evaluation = by_stage(schedule, memory, bandwidth, seed, num_replicas)
    if evaluation is None:
        never, always = (
            Candidate(num_replicas, 4, 1, 8 * num_replicas, schedule, policy)
            for policy in ("never", "always")
        )
        fit = [
            max(DeviceNeeds(x, cells(16, seed)).by_device(BOUNDARIES)) <= memory
            for x in (never, always)
        ]
        assert fit in ([True, True], [False, False])
        return
    candidate = evaluation.candidate
    recomputed, offloaded = map(set, candidate.roles(16))
    assert not recomputed & offloaded
    assert recomputed | offloaded
    assert not offloaded or bandwidth
    check(schedule_of(candidate))
    needs = DeviceNeeds(candidate, cells(16, seed)).by_device(evaluation.boundaries)
    assert needs == evaluation.bytes_by_device
    assert max(needs) <= memory


@pytest.mark.parametrize("seed", range(0, 40, 3))
def test_plans_by_stage_are_faster_than_those_with_one_role(seed: int) -> None:
    _, evaluations = planned(seed, None, Constraints())
    for evaluation in evaluations:
        candidate = evaluation.candidate
        others = [
            x.step_seconds
            for x in evaluations
            if x.candidate.schedule == candidate.schedule and x is not evaluation
        ]
        if candidate.is_by_stage:
            assert evaluation.step_seconds < min(others)


def test_a_plan_by_stage_may_be_the_fastest() -> None:
    _, evaluations = planned(9, None, Constraints())
    assert evaluations[0].candidate.is_by_stage


@pytest.mark.parametrize(
    "constraints",
    [
        Constraints(recompute="always"),
        Constraints(has_own_recompute=True),
        Constraints(offload="always"),
    ],
)
def test_constraints_leave_one_role(constraints: Constraints) -> None:
    for seed in range(0, 40, 3):
        _, evaluations = planned(
            seed, None if constraints.recompute else 1e6, constraints
        )
        assert not any(x.candidate.is_by_stage for x in evaluations)


@pytest.mark.parametrize(
    "constraints", [Constraints(offload="never"), Constraints(may_offload=False)]
)
def test_what_must_not_offload_recomputes(constraints: Constraints) -> None:
    for seed in range(0, 40, 3):
        _, evaluations = planned(seed, 1e7, constraints)
        assert not any(x.candidate.offloads for x in evaluations)
    _, evaluations = planned(9, 1e7, constraints)
    assert evaluations[0].candidate.is_by_stage


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_part_of_a_model_needs_the_memory_of_its_cells(is_alone: bool) -> None:
    shared = [SharedWeight(100, [0, 3]), SharedWeight(50, [1, 4, 5])]
    model = dataclasses.replace(made_up_model(2), shared_weights=shared)
    whole = model.memory if is_alone else model.replicated_memory
    for start, end in itertools.combinations(range(NUM_CELLS + 1), 2):
        part = model.part(start, end)
        memory, number = part.memory, len(part.calls)
        if not is_alone:
            memory = part.replicated_memory
        stop = start + number
        assert stop == end + (end == NUM_CELLS)
        assert memory.held(0, number) == whole.held(start, stop)
        assert memory.stash(0, number) == whole.stash(start, stop)
