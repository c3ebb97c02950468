"""Plans obey constraints; errors say what to change if nothing fits."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from lingvo_pipe.core.quantities import bytes_text
from lingvo_pipe.planner.costs.model_costs import Models
from lingvo_pipe.planner.resources.known_devices import DEVICES
from lingvo_pipe.planner.resources.resources import Constraints, Resources
from lingvo_pipe.planner.search import fitting_plan
from lingvo_pipe.planner.search.fitting_plan import NothingFits, fits, plan
from tests.planner.made_up_model import (
    BATCH_SIZE,
    every_candidate,
    made_up_device,
    made_up_models,
)
from tests.support.errors import fails

ANY = Constraints()
LARGEST = max(each.usable_bytes for each in DEVICES.values())


def models() -> Models:
    return made_up_models(made_up_device(10**6))


def resources(memory: int, num_devices: int = 4) -> Resources:
    return Resources((made_up_device(memory),) * num_devices, BATCH_SIZE)


def min_memory(rows: int = BATCH_SIZE) -> int:
    """Returns the memory with which the model just fits on four devices."""
    fitting = range(1, 100_000)
    low, high = fitting.start, fitting.stop
    while low < high:
        middle = (low + high) // 2
        there = dataclasses.replace(resources(middle), batch_size=rows)
        low, high = (low, middle) if fits(models(), there, ANY) else (middle + 1, high)
    return low


LEAST = min_memory()


def suggested(there: Resources, asked: Constraints = ANY, ours: Any = None) -> str:
    """Returns the changes that an error suggests because nothing fits."""
    with fails(NothingFits) as error:
        plan(ours or models(), there, asked)
    return error.value.hint


def ways_out(error: ValueError) -> list[tuple[str, str]]:
    """Returns the constraints to change, with the text about each."""
    last = str(error).partition(". Planned ways follow rules:")[0].rpartition("=")[2]
    return re.findall(r"\b(num_\w+|schedule|recompute)\b([^;]*)", last)


@pytest.mark.parametrize(
    ("constraints", "names"),
    [
        (
            Constraints(schedule="zero_bubble", recompute="always"),
            ["schedule", "recompute"],
        ),
        (Constraints(num_replicas=4, num_devices=2), ["num_replicas", "num_devices"]),
        (
            Constraints(num_replicas=4, num_micro_batches=2),
            ["num_replicas", "num_micro_batches"],
        ),
        (
            Constraints(num_devices=4, schedule="interleaved"),
            ["num_devices", "schedule"],
        ),
        (Constraints(num_micro_batches=3), ["num_micro_batches"]),
        (Constraints(schedule="gpip"), ["schedule"]),
    ],
)
def test_contradictions_name_what_is_possible(
    constraints: Constraints, names: list[str]
) -> None:
    with fails() as error:
        constraints.allowed(every_candidate())
    fixes = ways_out(error.value)
    assert [name for name, _ in fixes] == names
    for name, values in fixes:
        assert f"{name}={getattr(constraints, name)}" in str(error.value)
        possible = set(re.findall(r"\w+", values))
        for each in every_candidate():
            mended = dataclasses.replace(constraints, **{name: getattr(each, name)})
            allowed = any(mended._allows(x) for x in every_candidate())
            assert (str(getattr(each, name)) in possible) == allowed


def test_several_contradictions_are_reported_together() -> None:
    constraints = Constraints(3, 3, 3, "zero_bubble", "always")
    with pytest.raises(ValueError, match="num_replicas=3.*recompute=always") as error:
        constraints.allowed(every_candidate())
    assert ways_out(error.value) == []


def test_plans_obey_the_constraints() -> None:
    constraints = Constraints(num_devices=2, schedule="1f1b")
    found = plan(models(), resources(10**6), constraints)
    assert {each.candidate.schedule for each in found.fastest} == {"1f1b"}
    assert {each.candidate.num_devices for each in found.fastest} == {2}


def test_it_reports_how_much_memory_is_missing() -> None:
    there = resources(LEAST - 1)
    has, needs, more = (re.escape(bytes_text(x)) for x in (LEAST - 1, LEAST, 1))
    with pytest.raises(ValueError, match=rf"\b{has} .*\b{needs}, {more} "):
        plan(models(), there, ANY)
    assert plan(models(), resources(LEAST), ANY).fastest


@pytest.mark.parametrize("memory", [LEAST // 2, int(LEAST * 0.9), LEAST - 1])
def test_with_a_suggested_change_it_fits(memory: int) -> None:
    there = resources(memory, 2)
    text = suggested(there)
    if more := re.search(r"\b(\d+) GPU\b", text):
        number = int(more[1])
        changed = there.of_number(number)
        assert fits(models(), changed, ANY)
        for fewer in range(2, number):
            changed = there.of_number(fewer)
            assert not fits(models(), changed, ANY)
    if with_fewer := re.search(r"\b(\d+) rows?\b", text):
        rows = int(with_fewer[1])
        assert fits(models(), dataclasses.replace(there, batch_size=rows), ANY)
        assert not fits(models(), dataclasses.replace(there, batch_size=rows * 2), ANY)
    larger = re.search(rf"\b2 ({'|'.join(DEVICES)})\b", text)
    assert larger is not None
    device = DEVICES[larger[1]]
    assert fits(models(), there.of_kind(device), ANY)


def test_more_devices_are_advised_only_where_they_help() -> None:
    """A cell that is too large by itself is none on more devices."""
    text = suggested(resources(50, 2))
    assert "GPU" not in text
    assert re.search(rf"\b2 ({'|'.join(DEVICES)})\b.*\bcell \d\b", text)


@pytest.mark.parametrize("memory", range(200, LEAST, 300))
def test_a_cell_is_said_to_be_too_large_where_it_is(memory: int) -> None:
    if re.search(r"\bcell \d\b", suggested(resources(memory))):
        for number in (6, 12, 48):
            assert not fits(models(), resources(memory, number), ANY)


def test_where_nothing_helps_cells_are_too_large() -> None:
    rich = made_up_device(LARGEST)

    def huge(num_rows: int) -> Any:
        model, seconds = models()(num_rows)
        slots = [LARGEST * 2 for _ in model.slot_bytes]
        return dataclasses.replace(model, slot_bytes=slots), seconds

    text = suggested(Resources((rich,), 1), Constraints(num_replicas=1), huge)
    assert re.search(rf"\bcell 4\b.*\b{bytes_text(LARGEST * 2)}\b", text)
    assert not re.search(rf"=|\b\d+ (GPU|rows?|{'|'.join(DEVICES)})\b", text)


def heavy(num_rows: int) -> Any:
    """Returns a model of whose cells the largest devices hold two."""
    model, seconds = models()(num_rows)
    calls = [call._replace(weights=LARGEST * 2 // 5) for call in model.calls[:-1]]
    return dataclasses.replace(model, calls=[*calls, model.calls[-1]]), seconds


def test_a_constraint_can_be_the_obstacle() -> None:
    there = Resources((made_up_device(LARGEST),) * 4, BATCH_SIZE)
    for number, words in ((1, r"[^,\d]*"), (4, r"[^,\d]* 12 GPU [^,\d]*")):
        asked = Constraints(num_devices=1, num_replicas=number)
        text = suggested(there, asked, heavy)
        assert re.fullmatch(rf"{words} num_devices=1\.", text)


def test_if_several_changes_help_no_cell_is_blamed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fitting_plan, "_MAX_DEVICES", 8)
    asked = Constraints(num_devices=1, num_replicas=4)
    there = Resources((made_up_device(LARGEST),) * 4, BATCH_SIZE)
    text = suggested(there, asked, heavy)
    assert re.search(r"\b8\b", text)
    assert not re.search(r"=|\bcell \d", text)
    assert fits(heavy, there, ANY)


@pytest.mark.parametrize("memory", [LEAST // 2, LEAST, LEAST * 3 // 2])
def test_without_a_constraint_that_is_suggested_it_fits(memory: int) -> None:
    asked = Constraints(num_devices=2, num_micro_batches=1, recompute="never")
    text = suggested(resources(memory), asked)
    changes = [each for each in text.split(",") if "GPU" not in each]
    dropped = re.findall(r"(\w+)=", ",".join(changes))
    for name in asked.given:
        does = fits(models(), resources(memory), asked.without(name))
        assert does == (name in dropped)
    if more := re.search(r"\b(\d+) GPU \w+ num_devices=2\b", text):
        there = resources(memory, int(more[1]))
        assert fits(models(), there, asked.without("num_devices"))


def test_constraints_have_the_users_names() -> None:
    names = {"num_devices": "--num_stages", "recompute": "--recompute"}
    asked = Constraints(num_devices=4, schedule="interleaved", names=names)
    words = "--num_stages=4 .*schedule=interleaved.*--num_stages "
    with pytest.raises(ValueError, match=words):
        asked.allowed(every_candidate())
    own = Constraints(schedule="zero_bubble", num_devices=1, has_own_recompute=True)
    words = "schedule=zero_bubble .*recompute=None"
    with pytest.raises(ValueError, match=words) as error:
        own.allowed(every_candidate())
    assert "has_own_recompute" not in str(error.value)


def test_tpus_get_no_replicas() -> None:
    tpus = Resources((DEVICES["TPUv3"],) * 4, BATCH_SIZE)
    found = plan(models(), tpus, ANY)
    assert {each.candidate.num_replicas for each in found.fastest} == {1}
    words = r"num_replicas=2\b.*num_replicas \D*\b1\b.*\bTPUs "
    with pytest.raises(ValueError, match=words) as error:
        plan(models(), tpus, Constraints(num_replicas=2))
    assert not isinstance(error.value, NothingFits)
    gpus = Resources((DEVICES["A100-40GB"],) * 4, BATCH_SIZE)
    assert plan(models(), gpus, Constraints(num_replicas=2)).fastest


def test_the_users_limit_is_reported_and_kept() -> None:
    """It holds on other devices, too; without it the model would fit."""
    there = dataclasses.replace(resources(10**6), memory_limit=LEAST - 1)
    text = suggested(there)
    assert f" task.pipeline.memory_limit={LEAST - 1}" in text
    assert not any(name in text for name in DEVICES)
    enough = dataclasses.replace(there, memory_limit=LEAST)
    assert plan(models(), enough, ANY).fastest
    assert max(plan(models(), enough, ANY).fastest[0].bytes_by_device) <= LEAST


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_suggested_devices_compute_in_the_models_dtype(dtype: str) -> None:
    there = dataclasses.replace(resources(LEAST - 1), dtype=dtype)
    text = suggested(there)
    (name,) = [each for each in DEVICES if re.search(rf"\b4 {each}\b", text)]
    assert dtype in DEVICES[name].flops


def test_more_devices_that_share_memory_are_not_suggested() -> None:
    for shared in (False, True):
        device = dataclasses.replace(made_up_device(LEAST - 1), shares_memory=shared)
        text = suggested(Resources((device,) * 4, BATCH_SIZE))
        assert ("GPU" not in text) == shared


@pytest.mark.parametrize("number", [1, 3, 4])
def test_plans_can_require_all_devices(number: int) -> None:
    there = dataclasses.replace(resources(10**6, number), uses_all=True)
    for each in plan(models(), there, ANY).fastest:
        c = each.candidate
        assert c.num_replicas * c.num_devices == number
    with pytest.raises(ValueError, match=rf"num_replicas=5\b.*\b{number} devices\b"):
        plan(models(), there, Constraints(num_replicas=5))
