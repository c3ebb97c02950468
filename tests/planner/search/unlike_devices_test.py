"""Plans are the best of all, for devices of one kind, and for unlike ones."""

from __future__ import annotations

import dataclasses
import math
import random
import re
from collections.abc import Iterator

import pytest

from lingvo_pipe.planner.costs.device_needs import DeviceNeeds, OversizedCandidate
from lingvo_pipe.planner.costs.flops_time_model import flops_time
from lingvo_pipe.planner.resources.candidate import Candidate
from lingvo_pipe.planner.resources.device_model import DeviceModel
from lingvo_pipe.planner.resources.hosts import placements
from lingvo_pipe.planner.resources.resources import (
    Constraints,
    Resources,
    allowed_candidates,
)
from lingvo_pipe.planner.search.candidate_evaluation import (
    Evaluation,
    evaluate,
    evaluate_boundaries,
    step_costs,
)
from lingvo_pipe.planner.search.fastest_candidates import search, step_time_lower_bound
from lingvo_pipe.planner.search.fitting_plan import NothingFits, fits, plan
from lingvo_pipe.planner.search.plan_report import report, run_flags
from tests.pipeline.boundaries import all_boundaries
from tests.planner.made_up_model import (
    BATCH_SIZE,
    NUM_CELLS,
    NUM_DEVICES,
    every_candidate,
    made_up_device,
    made_up_model,
    made_up_models,
)
from tests.support.cases import seeds
from tests.support.errors import fails

RICH = 10**6
MEMORY = [4200, 7000, 7000, 12_000, RICH]  # Of devices of one kind, by seed.
ANY = Constraints()


def kind(name: str, slowness: float = 1.0, memory: int = RICH) -> DeviceModel:
    return dataclasses.replace(
        made_up_device(memory, name),
        flops={"float32": 1e6 / slowness},
        link_bandwidth=1e5 / slowness,
        link_seconds=1e-4 / slowness,
        operation_seconds=1e-5 * slowness,
    )


def random_resources(seed: int) -> Resources:
    """Returns devices in random order, whose memory matters for most seeds.

    For the first seeds all are of one kind.
    """
    rng = random.Random(seed)
    if seed < len(MEMORY):
        return Resources((kind("one", 1.0, MEMORY[seed]),) * NUM_DEVICES, BATCH_SIZE)
    memory = [rng.choice([5000, 10_000, 20_000, RICH]) for _ in range(3)]
    kinds = [kind(f"kind{i}", rng.uniform(1, 9), x) for i, x in enumerate(memory)]
    return Resources(tuple(rng.choices(kinds, k=NUM_DEVICES)), BATCH_SIZE)


def results(
    seed: int,
) -> Iterator[tuple[Candidate, Resources, Evaluation | OversizedCandidate]]:
    """Yields the evaluations of all allowed candidates."""
    resources = random_resources(seed)
    models = made_up_models(resources.devices[0], seed)
    for candidate in allowed_candidates(resources, ANY, NUM_CELLS):
        costs, seconds = models(BATCH_SIZE // candidate.num_micro_batches)
        devices = resources.of_pipeline(candidate)
        yield candidate, resources, evaluate(candidate, costs, seconds, devices)


@pytest.mark.parametrize("seed", seeds(13, fast=[0, 4, 9]))
def test_the_stages_are_the_best_that_fit_into_each_device(seed: int) -> None:
    """With several stages a device may hold more than a plan counts on."""
    for candidate, resources, result in results(seed):
        devices = resources.of_pipeline(candidate)
        model = made_up_model(BATCH_SIZE // candidate.num_micro_batches, seed)
        limit = max(device.usable_bytes for device in devices)
        lacking = [limit - device.usable_bytes for device in devices]
        needs = DeviceNeeds(candidate, model, lacking=lacking)
        excess, longest = {}, {}
        for boundaries in all_boundaries(NUM_CELLS, candidate.num_stages):
            pairs = zip(needs.by_device(boundaries), devices, strict=True)
            cut = tuple(boundaries)
            excess[cut] = max(used - device.usable_bytes for used, device in pairs)
            stages = zip(boundaries, needs.schedule.stage_devices, strict=True)
            longest[cut] = max(
                sum(model.flops[start:end]) / devices[k].speed("float32")
                for start, (end, k) in zip([0, *boundaries], stages, strict=False)
            )
        counted_on = [cut for cut in excess if needs.upper_bound(cut) <= limit]
        if isinstance(result, OversizedCandidate):
            assert not counted_on
            least, bound = min(excess.values()), result.needs.min_limit() - result.limit
            assert max(least, 1) <= result.excess
            has_several = candidate.stages_per_device > 1
            assert has_several or bound <= least == result.excess
        else:
            assert excess[cut := tuple(result.boundaries)] <= 0
            best = min((longest[other] for other in counted_on), default=math.inf)
            assert longest[cut] <= best * (1 + 1e-9)  # Sums are rounded.


@pytest.mark.parametrize("seed", seeds(13, fast=[0, 4, 9]))
def test_the_search_finds_the_fastest(seed: int) -> None:
    expected: dict[tuple[str, str, str], float] = {}
    oversized: set[Candidate] = set()
    for candidate, resources, result in results(seed):
        if isinstance(result, OversizedCandidate):
            oversized.add(candidate)
            continue
        before = expected.get(candidate.variant, result.step_seconds)
        expected[candidate.variant] = min(before, result.step_seconds)
        model, cells = made_up_models(resources.devices[0], seed)(
            BATCH_SIZE // candidate.num_micro_batches
        )
        given = candidate, cells, resources.of_pipeline(candidate), model.left_out
        assert step_time_lower_bound(*given) <= result.step_seconds * (1 + 1e-9)
    resources = random_resources(seed)
    models = made_up_models(resources.devices[0], seed)
    candidates = allowed_candidates(resources, ANY, NUM_CELLS)
    found = search(candidates, models, resources)
    assert {x.candidate.variant: x.step_seconds for x in found.fastest} == expected
    seconds = [x.step_seconds for x in found.fastest]
    assert seconds == sorted(seconds)
    assert {x.candidate for x in found.oversized} <= oversized
    others = found.num_slower + len(found.oversized)
    assert len(found.fastest) + others == len(candidates)


def test_an_operation_takes_as_long_as_in_a_pipeline_of_its_kind() -> None:
    devices = [kind("slow", 3), kind("fast"), kind("medium", 2)]
    resources, model = Resources(tuple(devices), BATCH_SIZE), made_up_model(1)
    candidate = Candidate(1, 3, 1, BATCH_SIZE, "zero_bubble", "never")
    needs, boundaries = DeviceNeeds(candidate, model), [1, 4, 6]
    seconds = flops_time(model, devices[0], "float32")
    unlike = evaluate_boundaries(
        needs, boundaries, seconds, resources.of_pipeline(candidate)
    )
    for k, device in enumerate(devices):
        seconds = flops_time(model, device, "float32")
        alike = evaluate_boundaries(needs, boundaries, seconds, [device] * 3)
        columns = (x.timeline.columns[k] for x in (unlike, alike))
        for a, b in zip(*columns, strict=True):
            assert a.op == b.op
            assert a.seconds == pytest.approx(b.seconds)
    costs = step_costs(seconds, model.boundary_bytes, boundaries, devices)
    for k, end in enumerate(boundaries[:-1]):
        pair = [device.link for device in devices[k : k + 2]]
        num_bytes = model.boundary_bytes[end - 1]
        slowest = max(x.latency for x in pair) + num_bytes / min(x[0] for x in pair)
        assert costs.stages[k].send_forward == pytest.approx(slowest)
        assert costs.stages[k + 1].send_backward == pytest.approx(slowest)


@pytest.mark.parametrize("seed", range(20))
def test_replicas_of_a_stage_are_on_one_kind(seed: int) -> None:
    resources = random_resources(seed)
    names = [device.name for device in resources.devices]
    for candidate in every_candidate():
        (rows,) = placements(candidate.num_replicas, candidate.num_devices, None, False)
        kinds = [
            {names[number] for number in numbers} for numbers in zip(*rows, strict=True)
        ]
        is_allowed = all(len(each) == 1 for each in kinds)
        assert resources.has_equal_replicas(candidate) == is_allowed
        if is_allowed:
            devices = resources.of_pipeline(candidate)
            assert [{device.name} for device in devices] == kinds


def test_a_suggestion_names_all_devices() -> None:
    resources = Resources((kind("A", memory=6000), kind("B", memory=5000)), BATCH_SIZE)
    models = made_up_models(resources.devices[0])
    with fails(NothingFits) as error:
        plan(models, resources, ANY)
    more = re.search(r"\b1 A and then (\d+) B\b", error.value.hint)
    assert more is not None
    number = 1 + int(more[1])
    assert fits(models, resources.of_number(number), ANY)
    assert not fits(models, resources.of_number(number - 1), ANY)
    assert re.search(r"\bA has .*\bB has .*more than it has", str(error.value))


def test_the_report_shows_each_device_and_its_memory() -> None:
    kinds = kind("A", memory=20_000), kind("B", 2, 9_000)
    resources = Resources((kinds[0],) * 2 + (kinds[1],) * 2, BATCH_SIZE)
    asked = Constraints(num_replicas=2, num_devices=2, schedule="1f1b")
    result = plan(made_up_models(kinds[0]), resources, asked)
    best, text = result.fastest[0], report(result, resources)
    rows = re.findall(r"^(\d, \d) +([AB]) +(\d) +(\d)(?: to (\d))? ", text, re.M)
    assert [row[:4] for row in rows] == [
        ("0, 1", "A", "0", "0"),
        ("2, 3", "B", "1", str(best.boundaries[0])),
    ]
    assert run_flags(best)[0] == "--devices=gpu:0,gpu:2,gpu:1,gpu:3"
    left = [
        device.usable_bytes - num_bytes
        for device, num_bytes in zip(best.devices, best.bytes_by_device, strict=True)
    ]
    assert left[best.fullest] == min(left) >= 0
