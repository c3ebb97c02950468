"""Params of a pipeline that are left to the planner become what can run."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Sequence
from typing import Any

import pytest

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.pipeline.devices.stage_devices import stage_devices
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.pipeline.splitting.cell_seconds import CellSeconds
from lingvo_pipe.planner import measured_models
from lingvo_pipe.planner import settle_auto as settle_auto_module
from lingvo_pipe.planner.company import Company
from lingvo_pipe.planner.device_model import DeviceModel
from lingvo_pipe.planner.search import Found
from lingvo_pipe.planner.settle_auto import settle_auto, take_auto
from lingvo_pipe.training.placement import place_stages
from tests.planner.made_up_model import made_up_device
from tests.registered_models.reduced_models import reduced_params
from tests.support.cases import exhaustive

NAMES = ("num_micro_batches", "schedule", "recompute")
BATCH_SIZE = 4


def pipeline(**values: Any) -> InstantiableParams:
    cells = [FCLayer.Params().Set(input_dim=2, output_dim=2) for _ in range(4)]
    p = PipeliningLayer.Params().Set(
        name="pipe", cell_tpl=cells, splits="auto", cell_costs=[1] * 4
    )
    return p.Set(**values)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"splits": 3, "num_micro_batches": 7, "recompute": [1]},
        {"stages_per_device": 2, "splits": 4, "schedule": "interleaved"},
        {"schedule": "orders.csv", "num_parts": 4},
    ],
)
def test_nothing_is_taken_where_nothing_is_auto(values: dict[str, Any]) -> None:
    p = pipeline(**values)
    before = p.ToText()
    assert take_auto(p) == set()
    assert p.ToText() == before


@pytest.mark.parametrize("num_replicas", [1, 2])
@pytest.mark.parametrize(
    "names", [c for n in (1, 2, 3) for c in itertools.combinations(NAMES, n)]
)
def test_what_is_auto_is_taken_and_a_pipeline_can_be_made(
    names: Sequence[str], num_replicas: int
) -> None:
    p = pipeline(num_replicas=num_replicas, num_micro_batches=4, recompute="never")
    p.schedule = "1f1b"
    before = {name: p.Get(name) for name in NAMES if name not in names}
    p.Set(**dict.fromkeys(names, "auto"))
    assert take_auto(p) == set(names)
    assert {name: p.Get(name) for name in before} == before
    assert "auto" not in [p.Get(name) for name in NAMES]
    p.devices = stage_devices(None, 2 * num_replicas)
    assert p.Instantiate().ends == [2, 4]


FAULTS = {
    "splits": ([2, 4], r"\bsplits\b[^;]*\bauto\b[^;]*\[2, 4\]"),
    "recompute": ([0, 1], r"\brecompute\b[^;]*\[0, 1\]"),
    "stages_per_device": (2, r"\bstages_per_device\b[^;]*\b1\b[^;]*\b2\b"),
    "micro_batch_size": (3, r"\bmicro_batch_size\b[^;]*None[^;]*\b3\b"),
    "schedule": ("orders.csv", r"\bschedule\b[^;]*\bgpipe, [^;]*\borders\.csv\b"),
    "num_parts": (2, r"\bnum_parts\b[^;]*None[^;]*\b2\b"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_leaves_no_choice_is_a_fault(name: str) -> None:
    value, words = FAULTS[name]
    auto = "recompute" if name == "schedule" else "schedule"
    with pytest.raises(ValueError, match=rf"task\.pipeline\b.*\bauto, .*{words}"):
        take_auto(pipeline(**{"num_micro_batches": "auto", auto: "auto", name: value}))


def test_faults_are_told_together() -> None:
    p = pipeline(num_micro_batches="auto")
    p.Set(**{name: value for name, (value, _) in FAULTS.items()})
    with pytest.raises(ValueError, match=r"\.pipeline .* num_micro_batches,") as error:
        take_auto(p)
    for _, words in FAULTS.values():
        assert re.search(words, str(error.value))


@pytest.mark.parametrize("num_replicas", [0, "2", 1.5, None])
def test_what_is_no_number_of_replicas_is_told_as_that(num_replicas: Any) -> None:
    p = pipeline(num_micro_batches="auto", num_replicas=num_replicas)
    take_auto(p)
    value = re.escape(repr(num_replicas))
    with pytest.raises(ValueError, match=rf"num_replicas\b.*task\.pipeline .*{value}"):
        place_stages(p, 2)


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_a_micro_batch_are_never_given(name: str) -> None:
    """Whatever is auto: what is planned are micro-batches of as many rows each."""
    p = pipeline(micro_batch_size=3, num_micro_batches=2).Set(**{name: "auto"})
    with pytest.raises(ValueError, match=r"\bmicro_batch_size\b.*None.*\b3\b"):
        take_auto(p)


@functools.cache
def reduced() -> Any:
    params = reduced_params("lm.text.TransformerTiny")
    return params, params.input.Instantiate().element_spec


def seconds(calls: Sequence[Any], *_: Any) -> list[CellSeconds]:
    """Cells take a second, and the loss nothing."""
    return [CellSeconds(1.0, 2.0) for _ in calls[:-1]] + [CellSeconds(0.0, 0.0)]


calibrated: list[list[str]] = []  # Devices that would have been measured.
said: list[str] = []  # Lines before it takes long.


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Found]:
    """What is found; devices are not measured."""
    calibrated.clear()
    said.clear()
    found: list[Found] = []

    def plan(*given: Any) -> Found:
        found.append(measured_models.plan_measured(*given))
        return found[-1]

    def device(names: Sequence[str]) -> DeviceModel:
        calibrated.append(list(names))
        return made_up_device(10**9)

    monkeypatch.setattr(measured_models, "measured_seconds", seconds)
    monkeypatch.setattr(settle_auto_module, "calibrated_device", device)
    monkeypatch.setattr(settle_auto_module, "plan_measured", plan)
    return found


def settled(*, number: int = 2, **values: Any) -> tuple[InstantiableParams, str]:
    """The params of the task, and the line."""
    params, spec = reduced()
    task = params.task.Copy().Set(name="task")
    task.pipeline.Set(splits="auto", devices=stage_devices(None, number), **values)
    names = take_auto(task.pipeline)
    devices = task.pipeline.devices
    return task, settle_auto(task, names, spec, BATCH_SIZE, devices, said.append)


AUTO: dict[str, Any] = dict.fromkeys(NAMES, "auto")


def test_they_are_those_of_the_fastest(plans: list[Found]) -> None:
    task, line = settled(**AUTO)
    best = plans[0].fastest[0]
    p, candidate = task.pipeline, best.candidate
    assert p.splits == list(best.ends)
    assert p.num_micro_batches == candidate.num_micro_batches
    assert (p.schedule, p.recompute) == (candidate.schedule, candidate.recompute)
    assert p.stages_per_device == candidate.stages_per_device
    assert line.startswith(f"planned: K=2 M={p.num_micro_batches} {p.schedule}, rec")
    assert f"splits={p.splits}: {best.step_seconds:.4g} s " in line
    assert task.Instantiate().pipeline.ends == p.splits


@pytest.mark.parametrize(
    "given",
    [
        {"num_micro_batches": 2},
        exhaustive({"schedule": "1f1b"}),
        exhaustive({"recompute": "always"}),
        exhaustive({"recompute": None}),
        {"schedule": "gpipe", "recompute": None, "num_replicas": 2},
        exhaustive({"num_micro_batches": 4, "schedule": "zero_bubble"}),
    ],
)
def test_what_is_given_stays(given: dict[str, Any], plans: list[Found]) -> None:
    number = 2 * given.get("num_replicas", 1)
    task, _ = settled(number=number, **{**AUTO, **given})
    for name, value in given.items():
        if (name, value) != ("recompute", None):
            assert task.pipeline.Get(name) == value
    if "recompute" in given and given["recompute"] is None:
        assert plans[0].fastest[0].candidate.has_own_recompute
    assert len(task.Instantiate().pipeline.ends) % 2 == 0


def test_the_memory_limit_is_kept(plans: list[Found]) -> None:
    settled(**AUTO)
    freely = max(plans[0].fastest[0].bytes_by_device)
    told = r"memory_limit=1000\b.*\b2 GPU\b.*recompute="
    with pytest.raises(ValueError, match=told):
        settled(**AUTO, memory_limit=1000)
    task, _ = settled(**AUTO, memory_limit=freely - 1)
    assert max(plans[-1].fastest[0].bytes_by_device) < freely
    assert task.pipeline.memory_limit == freely - 1
    assert plans[-1].fastest[0].candidate != plans[0].fastest[0].candidate


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"memory_limit": 0}, r"memory_limit\b.*task\.pipeline\D*\b0\b"),
        ({"memory_limit": "12e9"}, r"memory_limit\b.*task\.pipeline\b.*'12e9'"),
        ({"before_tpl": [FCLayer.Params()]}, r"task\.pipeline\.before_tpl\b.*\b1\b"),
        (
            {"num_micro_batches": 3, "num_replicas": 2},
            r"num_micro_batches\W+3\b.*num_replicas\W+2\b",
        ),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_measured(
    values: dict[str, Any], words: str, plans: list[Found]
) -> None:
    with pytest.raises(ValueError, match=words):
        settled(number=2, **{**AUTO, **values})
    assert not calibrated
    assert not said
    settled(number=2, **AUTO)
    assert len(calibrated) == 1
    (line,) = said
    assert " num_micro_batches, recompute, schedule: " in line


def test_blocks_with_losses_of_their_own_are_told_likewise(plans: list[Found]) -> None:
    params, spec = reduced()
    task = params.task.Copy().Set(name="task")
    task.local.scheme = "greedy"
    with pytest.raises(ValueError, match=r"task\.local\.scheme\b.*'greedy'"):
        settle_auto(
            task, {"schedule"}, spec, BATCH_SIZE, stage_devices(None, 2), said.append
        )
    assert calibrated == []


WORKERS = [f"/job:worker/replica:0/task:{i}/device:CPU:0" for i in range(2)]


@pytest.mark.parametrize("memory_limit", [None, 10**8])
def test_memory_that_is_not_known_is_told(
    memory_limit: int | None, plans: list[Found], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the user limits it."""
    monkeypatch.setattr(measured_models, "measured_company", lambda *_: Company())
    told = "task.pipeline.memory_limit"
    _, line = settled(**AUTO, memory_limit=memory_limit)
    assert told not in line
    params, spec = reduced()
    task = params.task.Copy().Set(name="task")
    task.pipeline.Set(splits="auto", memory_limit=memory_limit, **AUTO)
    names = take_auto(task.pipeline)
    line = settle_auto(task, names, spec, BATCH_SIZE, WORKERS, said.append)
    assert (told in line) == (memory_limit is None)
    assert ("workers" in line) == (told in line)
