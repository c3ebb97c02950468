"""What a plan is printed as, and that the trainer takes its flags."""

from __future__ import annotations

import dataclasses
import re

import pytest

import model_registry
from lingvo_pipe.pipeline.devices import stage_devices  # noqa: F401  Asks for several.
from lingvo_pipe.planner.constraints import Constraints
from lingvo_pipe.planner.device_model import DeviceModel
from lingvo_pipe.planner.plan_report import amount, gib, name_of, report, run_flags
from lingvo_pipe.planner.planning import Resources, plan
from lingvo_pipe.planner.search import Found
from lingvo_pipe.planner.time_parts import time_parts, why_slower
from tests.planner.made_up_model import (
    BATCH_SIZE,
    NUM_CELLS,
    made_up_device,
    made_up_models,
)

DEVICE = made_up_device(7000)
LARGE = made_up_device(40_000)


def found(constraints: Constraints, device: DeviceModel = DEVICE) -> Found:
    resources = Resources(device, 4, BATCH_SIZE)
    return plan(made_up_models(device), resources, constraints)


def test_it_shows_a_row_for_each_way_the_fastest_first() -> None:
    result = found(Constraints())
    header, *rows = report(result, DEVICE).split("\n\n")[0].split("\n")
    assert header.split()[:2] == ["step,", "s"]
    assert len(rows) == len(result.fastest) > 4
    for row, each in zip(rows, result.fastest, strict=True):
        c = each.candidate
        words = row.split()
        assert float(words[0]) == pytest.approx(each.step_seconds, rel=1e-3)
        shape = [c.num_replicas, c.num_devices, c.stages_per_device]
        assert words[3:7] == [*map(str, shape), str(c.num_micro_batches)]
        assert words[7:9] == [c.schedule, c.recompute]
        assert (len(words) == 9) == (each is result.fastest[0])


def test_it_names_what_does_not_fit() -> None:
    result = found(Constraints())
    assert result.too_large
    text = report(result, DEVICE)
    assert f"{len(result.too_large):,} of those looked at don't fit" in text
    assert f"{name_of(result.too_large[0].candidate)}: a device would need" in text


def test_the_parts_of_a_step_are_all_of_it() -> None:
    for each in found(Constraints()).fastest:
        parts = time_parts(each)
        assert sum(parts.values()) == pytest.approx(each.step_seconds)
        assert min(parts.values()) >= -1e-12
        assert (parts["recomputation"] > 0) <= (each.candidate.recompute != "never")


@pytest.mark.parametrize(
    "constraints",
    [
        Constraints(num_devices=2, num_replicas=2, schedule="gpipe"),
        Constraints(num_devices=4, schedule="1f1b", recompute="always"),
        Constraints(num_devices=2, num_replicas=1, schedule="interleaved"),
        Constraints(num_devices=4, schedule="zero_bubble"),
        Constraints(num_devices=1),
    ],
)
def test_a_pipeline_takes_the_flags(constraints: Constraints) -> None:
    best = found(constraints, LARGE).fastest[0]
    devices, override = run_flags(best, "input.batch_size : 16; ")
    c = best.candidate
    number = int(devices.removeprefix("--devices="))
    assert number == c.num_replicas * c.num_devices
    match = re.fullmatch("--model_params_override='(.*)'", override)
    assert match is not None
    params = model_registry.GetParams("image.digits.AmoebaNetDigits", "Train")
    params.FromText(match[1], separator=";")
    assert params.input.batch_size == 16
    p = params.task.pipeline
    p.Set(name="pipeline", cell_tpl=p.cell_tpl[:NUM_CELLS])
    pipeline = p.Set(devices=[f"cpu:{i}" for i in range(number)]).Instantiate()
    assert list(pipeline.ends) == list(best.ends)
    schedule = pipeline.schedule
    assert schedule.num_micro_batches == c.micro_batches_each
    assert (schedule.num_stages, schedule.num_devices) == (c.num_stages, c.num_devices)


def test_bytes_have_three_digits() -> None:
    assert gib(2**30) == "1"
    assert gib(1.2345 * 2**30) == "1.23"
    assert gib(1234.5 * 2**30) == "1,234"


def test_small_amounts_are_in_mib() -> None:
    assert amount(3 * 2**30) == "3 GiB"
    assert amount(50 * 2**20) == "50 MiB"
    assert amount(102 * 2**20) == "102 MiB"
    assert amount(103 * 2**20) == "0.101 GiB"


def test_a_tie_is_as_fast() -> None:
    best, *_, last = found(Constraints()).fastest
    twin = dataclasses.replace(best, candidate=last.candidate)
    assert why_slower(twin, best) == "as fast"
    assert why_slower(last, best).split()[1].startswith("+")
