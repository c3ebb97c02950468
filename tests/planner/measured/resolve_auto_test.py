"""Params that are `auto` are extracted, and resolved to a plan that runs."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.pipeline.devices.stage_devices import stage_devices
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.pipeline.splitting.cell_costs import CellSeconds
from lingvo_pipe.planner.measured import (
    measured_models,
    resolve_auto as resolve_auto_module,
)
from lingvo_pipe.planner.measured.resolve_auto import extract_auto, resolve_auto
from lingvo_pipe.planner.resources.device_model import DeviceModel
from lingvo_pipe.planner.resources.hosts import Hosts, Link
from lingvo_pipe.planner.search.fastest_candidates import SearchResult
from lingvo_pipe.training.task.placement import place_stages
from tests.planner.made_up_machine import replace_times
from tests.planner.made_up_model import made_up_device
from tests.registered_models.reduced_models import reduced_params
from tests.support.cases import exhaustive
from tests.support.errors import fails

NAMES = ("num_micro_batches", "schedule", "recompute", "offload")
BATCH_SIZE = 4


def pipeline(**values: Any) -> InstantiableParams:
    cells = [FCLayer.Params().Set(input_dim=2, output_dim=2) for _ in range(4)]
    p = PipeliningLayer.Params().Set(name="pipe", cell_tpl=cells, splits="auto")
    return p.Set(**values)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"splits": 3, "num_micro_batches": 7, "recompute": [1]},
        {"stages_per_device": 2, "splits": 4, "schedule": "interleaved"},
        {"schedule": "orders.csv", "num_batch_shards": 4},
    ],
)
def test_without_auto_nothing_is_extracted(values: dict[str, Any]) -> None:
    p = pipeline(**values)
    before = p.ToText()
    p.Freeze()
    assert extract_auto(p) == set()
    assert p.ToText() == before


@pytest.mark.parametrize("num_replicas", [1, 2])
@pytest.mark.parametrize(
    "names", [c for n in (1, 2, 3, 4) for c in itertools.combinations(NAMES, n)]
)
def test_a_pipeline_without_auto_can_be_instantiated(
    names: Sequence[str], num_replicas: int
) -> None:
    p = pipeline(num_replicas=num_replicas, num_micro_batches=4, recompute="never")
    p.schedule = "1f1b"
    before = {name: p.Get(name) for name in NAMES if name not in names}
    p.Set(**dict.fromkeys(names, "auto"))
    assert extract_auto(p) == set(names)
    assert {name: p.Get(name) for name in before} == before
    assert "auto" not in [p.Get(name) for name in NAMES]
    p.Set(cell_costs=[1] * 4, devices=stage_devices(None, 2 * num_replicas))
    assert p.Instantiate().boundaries == [2, 4]


PROBLEMS = {
    "splits": [2, 4],
    "slices": "auto",
    "schedule": "orders.csv",
    "recompute": [0, 1],
    "stages_per_device": 2,
    "num_batch_shards": 2,
    "micro_batch_size": 3,
    "cell_costs": "measured",
}


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("auto", NAMES)
def test_params_that_leave_no_choice_are_problems(name: str, auto: str) -> None:
    if name != auto:
        p = pipeline(num_micro_batches=2, recompute="never")
        p.Set(**{auto: "auto", name: PROBLEMS[name]})
        with fails(path=f"task.pipeline.{name}", got=PROBLEMS[name]) as error:
            extract_auto(p)
        assert auto in error.value.hint


def test_problems_are_reported_together() -> None:
    p = pipeline(num_micro_batches="auto").Set(**PROBLEMS)
    with fails() as error:
        extract_auto(p)
    found = {problem.path: problem.got for problem in error.value.problems}
    assert found == {f"task.pipeline.{name}": x for name, x in PROBLEMS.items()}


@pytest.mark.parametrize("num_replicas", [0, "2", None])
def test_an_invalid_number_of_replicas_is_reported(num_replicas: Any) -> None:
    p = pipeline(num_micro_batches="auto", num_replicas=num_replicas)
    extract_auto(p)
    with fails(path="task.pipeline.num_replicas", got=num_replicas):
        place_stages(p, 2)


@functools.cache
def reduced() -> Any:
    params = reduced_params("lm.text.TransformerTiny")
    return params, params.input.Instantiate().element_spec


def seconds(calls: Sequence[Any], *_: Any) -> list[CellSeconds]:
    """Returns a second for each cell, and none for the loss."""
    return [CellSeconds(1.0, 2.0) for _ in calls[:-1]] + [CellSeconds(0.0, 0.0)]


calibrated: list[list[str]] = []  # Devices that would be measured.
logged: list[str] = []  # Lines before the long measurement.


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[SearchResult]:
    """Collects results; measures no devices."""
    calibrated.clear()
    logged.clear()
    found: list[SearchResult] = []

    def plan(*given: Any) -> SearchResult:
        found.append(measured_models.plan_measured(*given))
        return found[-1]

    def device(names: Sequence[str]) -> DeviceModel:
        calibrated.append(list(names))
        return made_up_device(10**9)

    replace_times(monkeypatch, seconds)
    monkeypatch.setattr(resolve_auto_module, "machine_device", device)
    monkeypatch.setattr(resolve_auto_module, "plan_measured", plan)
    return found


def resolved(
    *, number: int = 2, offload_slots: bool = False, **values: Any
) -> tuple[InstantiableParams, str]:
    """Returns the params of the task, and the line for the user."""
    params, spec = reduced()
    task = params.task.Copy().Set(name="task")
    task.train.offload_slots = offload_slots
    task.pipeline.Set(splits="auto", devices=stage_devices(None, number), **values)
    names = extract_auto(task.pipeline)
    devices = task.pipeline.devices
    plan = resolve_auto(task, names, spec, BATCH_SIZE, devices, logged.append)
    return task, plan.line


AUTO: dict[str, Any] = dict.fromkeys(NAMES, "auto")


def test_they_become_those_of_the_fastest(plans: list[SearchResult]) -> None:
    """Lines tell of the measurement before, and of the plan after it."""
    task, line = resolved(**AUTO)
    best = plans[0].fastest[0]
    p, candidate = task.pipeline, best.candidate
    assert p.splits == list(best.boundaries)
    assert p.num_micro_batches == candidate.num_micro_batches
    assert (p.schedule, p.recompute) == (candidate.schedule, candidate.recompute)
    assert p.stages_per_device == candidate.stages_per_device
    assert line.startswith(f"planned: K=2 M={p.num_micro_batches} {p.schedule}, rec")
    assert f"splits={p.splits}: {best.step_seconds:.4g} s " in line
    assert "task.pipeline.memory_limit" not in line
    assert task.Instantiate().pipeline.boundaries == p.splits
    assert len(calibrated) == 1
    (announced,) = logged
    assert " num_micro_batches, offload, recompute, schedule: " in announced


@pytest.mark.parametrize(
    "given",
    [
        exhaustive({"num_micro_batches": 2}),
        exhaustive({"schedule": "1f1b"}),
        exhaustive({"recompute": "always", "offload": None}),
        exhaustive({"recompute": None, "offload": None}),
        {"schedule": "gpipe", "recompute": None, "offload": None, "num_replicas": 2},
        exhaustive({"num_micro_batches": 4, "schedule": "zero_bubble"}),
    ],
)
def test_given_params_stay(given: dict[str, Any], plans: list[SearchResult]) -> None:
    number = 2 * given.get("num_replicas", 1)
    task, _ = resolved(number=number, **{**AUTO, **given})
    for name, value in given.items():
        if (name, value) != ("recompute", None):
            assert task.pipeline.Get(name) == value
    if "recompute" in given and given["recompute"] is None:
        assert plans[0].fastest[0].candidate.has_own_recompute
    assert len(task.Instantiate().pipeline.boundaries) % 2 == 0


def test_the_memory_limit_is_kept(plans: list[SearchResult]) -> None:
    resolved(**AUTO)
    freely = max(plans[0].fastest[0].bytes_by_device)
    words = r"memory_limit=1000\b.*\b2 GPU\b.*recompute="
    with pytest.raises(UserValueError, match=words):
        resolved(**AUTO, memory_limit=1000)
    task, _ = resolved(**AUTO, memory_limit=freely - 1)
    assert max(plans[-1].fastest[0].bytes_by_device) < freely
    assert task.pipeline.memory_limit == freely - 1
    assert plans[-1].fastest[0].candidate != plans[0].fastest[0].candidate


def test_cells_have_roles_by_stage_where_memory_is_short(
    plans: list[SearchResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    device = dataclasses.replace(made_up_device(10**9), host_bandwidth=1e3)
    monkeypatch.setattr(resolve_auto_module, "machine_device", lambda _: device)
    schedule = {**AUTO, "schedule": "gpipe", "num_micro_batches": BATCH_SIZE}
    resolved(**schedule)
    limit = max(plans[0].fastest[0].bytes_by_device) - 1
    task, _ = resolved(**schedule, memory_limit=limit)
    p, candidate = task.pipeline, plans[-1].fastest[0].candidate
    assert candidate.is_by_stage
    recomputed, offloaded = candidate.roles(len(p.cell_tpl))
    assert p.recompute == (list(recomputed) or "never")
    assert p.offload == (list(offloaded) or None)
    p.memory_limit = None  # It would need the shapes of inputs.
    assert task.Instantiate().pipeline.boundaries == p.splits
    task, _ = resolved(**{**schedule, "offload": None}, memory_limit=limit)
    assert task.pipeline.offload is None


def test_slots_on_the_host_take_the_time_of_their_copies(
    plans: list[SearchResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if activations may not be copied."""
    device = dataclasses.replace(made_up_device(10**9), host_bandwidth=1e3)
    monkeypatch.setattr(resolve_auto_module, "machine_device", lambda _: device)
    gpu = SimpleNamespace(has_host_memory=False)
    monkeypatch.setattr(measured_models, "device_name", lambda _: gpu)
    for offload_slots in (False, True):
        resolved(**{**AUTO, "offload": None}, offload_slots=offload_slots)
    on_device, on_host = (result.fastest for result in plans)
    assert on_host[0].step_seconds > on_device[0].step_seconds
    assert not any(x.candidate.offloads for x in (*on_device, *on_host))


def test_an_error_names_no_constraint_that_is_not_set(
    plans: list[SearchResult],
) -> None:
    """Once it named offload=never, which no pipeline's params may be."""
    given = {"schedule": "zero_bubble", "recompute": "always", "offload": None}
    with fails() as error:
        resolved(**{**AUTO, **given})
    problem = str(error.value).removesuffix(error.value.hint)
    assert "task.pipeline.recompute=always" in problem
    assert "offload" not in problem


def test_nothing_is_offloaded_beside_a_given_recomputation() -> None:
    p = pipeline(offload="auto", recompute="always")
    with fails(path="task.pipeline.recompute", got="always"):
        extract_auto(p)


@pytest.mark.parametrize(
    ("values", "path", "got"),
    [
        ({"memory_limit": 0}, "memory_limit", 0),
        ({"memory_limit": "12e9"}, "memory_limit", "12e9"),
        ({"num_micro_batches": 3, "num_replicas": 2}, "num_micro_batches", 3),
    ],
)
def test_problems_are_reported_before_anything_is_measured(
    values: dict[str, Any], path: str, got: Any, plans: list[SearchResult]
) -> None:
    with fails(path=f"task.pipeline.{path}", got=got):
        resolved(number=2, **{**AUTO, **values})
    with pytest.raises(UserValueError, match=r"task\.pipeline\.before_tpl\b.*\b1\b"):
        resolved(**{**AUTO, "before_tpl": [FCLayer.Params()]})
    assert not calibrated
    assert not logged


def test_local_losses_are_reported_before_anything_is_measured(
    plans: list[SearchResult],
) -> None:
    params, spec = reduced()
    task = params.task.Copy().Set(name="task")
    task.local.scheme = "greedy"
    with pytest.raises(UserValueError, match=r"task\.local\.scheme\b.*'greedy'"):
        resolve_auto(
            task, {"schedule"}, spec, BATCH_SIZE, stage_devices(None, 2), logged.append
        )
    assert calibrated == []


@pytest.mark.parametrize("by_stage", [exhaustive(False), True])
def test_devices_are_in_the_order_of_the_placement(
    by_stage: bool, plans: list[SearchResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replicas of a stage are on one host where weights are what takes long."""
    latency, bandwidth = (0.0, 1e3) if by_stage else (1e3, 1e9)
    hosts = Hosts(2, Link(bandwidth, latency))
    device = dataclasses.replace(made_up_device(10**9), hosts=hosts)
    monkeypatch.setattr(resolve_auto_module, "machine_device", lambda _: device)
    task, _ = resolved(number=4, **{**AUTO, "num_replicas": 2})
    first, *_ = placement = plans[0].fastest[0].placement
    assert placement == (((0, 2), (1, 3)) if by_stage else ((0, 1), (2, 3)))
    devices = stage_devices(None, 4)
    assert task.pipeline.devices == [devices[x] for row in placement for x in row]
    replicas = task.Instantiate().pipeline.replicas
    assert {*replicas[0]} == {devices[x] for x in first}


WORKERS = [f"/job:worker/replica:0/task:{i}/device:CPU:0" for i in range(2)]


@pytest.mark.parametrize("memory_limit", [None, exhaustive(10**8)])
def test_unknown_memory_is_reported(
    memory_limit: int | None, plans: list[SearchResult]
) -> None:
    """It is reported unless the user limits it."""
    param = "task.pipeline.memory_limit"
    params, spec = reduced()
    task = params.task.Copy().Set(name="task")
    task.pipeline.Set(splits="auto", memory_limit=memory_limit, **AUTO)
    names = extract_auto(task.pipeline)
    line = resolve_auto(task, names, spec, BATCH_SIZE, WORKERS, logged.append).line
    assert (param in line) == (memory_limit is None)
    assert ("workers" in line) == (param in line)
