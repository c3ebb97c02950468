"""The report of a plan, and the flags that the trainer accepts."""

from __future__ import annotations

import dataclasses
import re

import pytest

import model_registry
from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.quantities import bytes_text
from lingvo_pipe.pipeline.devices import stage_devices  # noqa: F401  Asks for several.
from lingvo_pipe.pipeline.devices.cluster_spec import parse_cluster_spec
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.pipeline.schedules.schedule import Kind
from lingvo_pipe.planner.resources.device_model import DeviceModel
from lingvo_pipe.planner.resources.hosts import Hosts
from lingvo_pipe.planner.resources.resources import Constraints, Resources
from lingvo_pipe.planner.search.candidate_evaluation import Evaluation
from lingvo_pipe.planner.search.fastest_candidates import SearchResult
from lingvo_pipe.planner.search.fitting_plan import plan
from lingvo_pipe.planner.search.plan_report import (
    report,
    run_flags,
    time_breakdown,
    why_slower,
)
from tests.planner.made_up_model import (
    BATCH_SIZE,
    NUM_CELLS,
    made_up_device,
    made_up_models,
)

DEVICE = made_up_device(9500)
LARGE = made_up_device(40_000)
THERE = Resources((DEVICE,) * 4, BATCH_SIZE)


def found(constraints: Constraints, device: DeviceModel = DEVICE) -> SearchResult:
    resources = THERE.of_kind(device)
    return plan(made_up_models(device), resources, constraints)


def test_it_shows_a_row_for_each_variant_the_fastest_first() -> None:
    result = found(Constraints(num_devices=2))
    header, *rows = report(result, THERE).split("\n\n")[0].split("\n")
    assert header.split()[:4] == ["step", "examples/s", "idle", "needs"]
    assert len(rows) == len(result.fastest) > 4
    for row, each in zip(rows, result.fastest, strict=True):
        c = each.candidate
        words = row.split()
        seconds = float(words[0]) * {"s": 1, "ms": 1e-3}[words[1]]
        assert seconds == pytest.approx(each.step_seconds, rel=1e-3)
        assert float(words[2].replace(",", "")) == pytest.approx(
            BATCH_SIZE / each.step_seconds, rel=1e-3
        )
        assert " ".join(words[4:6]) == bytes_text(max(each.bytes_by_device))
        shape = [c.num_replicas, c.num_devices, c.stages_per_device]
        assert words[6:10] == [*map(str, shape), str(c.num_micro_batches)]
        assert words[10:12] == [c.schedule, c.recompute]
        assert (len(words) == 12) == (each is result.fastest[0])


def test_schedules_with_the_same_numbers_share_a_row() -> None:
    """They do on one device, with one micro-batch."""
    asked = Constraints(num_devices=1, num_replicas=1, num_micro_batches=1)
    result = found(asked, LARGE)
    there = THERE.of_kind(LARGE)
    _, *rows = report(result, there).split("\n\n")[0].split("\n")
    assert len(rows) < len(result.fastest)
    assert re.search(r" gpipe or 1f1b +never or .*always$", rows[0])
    for each in result.fastest:
        c = each.candidate
        assert sum(c.schedule in row and f" {c.recompute}" in row for row in rows) == 1


@pytest.mark.parametrize("number", [1, 2, 4])
def test_it_counts_devices_that_stay_idle(number: int) -> None:
    asked = Constraints(num_devices=number, num_replicas=1)
    text = report(found(asked, LARGE), THERE.of_kind(LARGE))
    assert (f" {number} of 4 " in text) == (number < 4)


def test_it_names_candidates_that_do_not_fit() -> None:
    result = found(Constraints())
    assert result.oversized
    text = report(result, THERE)
    first = result.oversized[0]
    way, needed, more = (
        re.escape(each)
        for each in (
            str(first.candidate),
            bytes_text(first.needed_bytes),
            bytes_text(first.needed_bytes - DEVICE.usable_bytes),
        )
    )
    words = rf"^{len(result.oversized):,} \D*^  {way}: .*{needed}, {more} "
    assert re.search(words, text, re.M)


@pytest.mark.parametrize(("per_host", "num_workers"), [(4, 0), (2, 2), (1, 4)])
def test_it_shows_how_to_start_the_workers(per_host: int, num_workers: int) -> None:
    device = dataclasses.replace(DEVICE, hosts=Hosts(per_host, DEVICE.link))
    resources = THERE.of_kind(device)
    constraints = Constraints(num_devices=4, num_replicas=1)
    text = report(plan(made_up_models(device), resources, constraints), resources)
    commands = re.findall(r"^lingvo_pipe train .* --cluster=(\S+)$", text, re.M)
    assert sum(len(parse_cluster_spec(x).workers) for x in commands) == num_workers


def test_the_cluster_has_all_workers_of_the_devices() -> None:
    """Replicas that are placed apart leave some hosts' devices out."""
    device = dataclasses.replace(LARGE, hosts=Hosts(4, DEVICE.link))
    resources = Resources((device,) * 16, BATCH_SIZE)
    constraints = Constraints(num_devices=3, num_replicas=4)
    result = plan(made_up_models(device), resources, constraints)
    placement = tuple((i, i + 1, i + 2) for i in range(0, 16, 4))
    best = dataclasses.replace(result.fastest[0], placement=placement)
    text = report(dataclasses.replace(result, fastest=[best]), resources)
    (cluster,) = re.findall(r"--cluster=(\S+)$", text, re.M)
    devices, _ = run_flags(best, hosts=resources.limited_devices[0].hosts)
    named = max(map(int, re.findall(r"worker:(\d+)", devices)))
    assert len(parse_cluster_spec(cluster).workers) == named + 1 == 4


def test_it_shows_what_waits_on_the_host() -> None:
    device = dataclasses.replace(LARGE, host_bandwidth=1e9)
    result = found(Constraints(num_devices=4, offload="always"), device)
    assert {each.candidate.schedule for each in result.fastest} == {"gpipe", "1f1b"}
    text = report(result, THERE.of_kind(device))
    rows, *_ = text.split("\n\n")
    assert rows.count(" never, offload ") + rows.count(" never, offload\n") == 2
    most = max(max(each.bytes_on_hosts) for each in result.fastest)
    assert f"up to {bytes_text(most)} for each device" in text


def test_without_a_link_to_the_host_nothing_is_offloaded() -> None:
    with pytest.raises(UserValueError, match="offload=always"):
        found(Constraints(offload="always"), LARGE)


def test_the_breakdown_adds_up_to_the_step() -> None:
    for each in found(Constraints()).fastest:
        parts = time_breakdown(each)
        assert sum(parts.values()) == pytest.approx(each.step_seconds)
        assert min(parts.values()) >= -1e-12
        assert (parts["recomputation"] > 0) <= (each.candidate.recompute != "never")


def pipeline_of(best: Evaluation) -> PipeliningLayer:
    """Returns the pipeline of a model that is changed by the trainer's flags."""
    devices, override = run_flags(best, "input.batch_size : 16")
    number = int(devices.removeprefix("--devices="))
    assert number == best.candidate.total_devices
    match = re.fullmatch("--model_params_override='(.*)'", override)
    assert match is not None
    params = model_registry.GetParams("image.digits.AmoebaNetDigits", "Train")
    params.FromText(match[1], separator=";")
    assert params.input.batch_size == 16
    p = params.task.pipeline
    p.Set(name="pipeline", cell_tpl=p.cell_tpl[:NUM_CELLS])
    return p.Set(devices=[f"cpu:{i}" for i in range(number)]).Instantiate()


def test_a_pipeline_accepts_lists_of_cells() -> None:
    constraints = Constraints(num_devices=2, num_replicas=1, schedule="gpipe")
    best = found(constraints, LARGE).fastest[0]
    candidate = dataclasses.replace(
        best.candidate, num_micro_batches=8, recompute=(0, 2), offload=(1,)
    )
    pipeline = pipeline_of(dataclasses.replace(best, candidate=candidate))
    p = pipeline.params
    assert (p.recompute, p.offload) == ([0, 2], [1])
    assert {Kind.OFFLOAD, Kind.RECOMPUTE} <= pipeline.schedule.kinds


@pytest.mark.parametrize(
    "constraints",
    [
        Constraints(num_devices=2, num_replicas=2, schedule="gpipe"),
        Constraints(num_devices=4, schedule="1f1b", recompute="always"),
        Constraints(num_devices=2, num_replicas=1, schedule="interleaved"),
        Constraints(num_devices=4, schedule="zero_bubble"),
        Constraints(num_devices=1),
        Constraints(num_devices=4, schedule="1f1b", offload="always"),
    ],
)
def test_a_pipeline_accepts_the_flags(constraints: Constraints) -> None:
    device = dataclasses.replace(LARGE, host_bandwidth=1e9)
    best = found(constraints, device).fastest[0]
    c, pipeline = best.candidate, pipeline_of(best)
    assert list(pipeline.boundaries) == list(best.boundaries)
    schedule = pipeline.schedule
    assert schedule.num_micro_batches == c.micro_batches_per_replica
    assert (schedule.num_stages, schedule.num_devices) == (c.num_stages, c.num_devices)
    assert (Kind.OFFLOAD in schedule.kinds) == (c.offload == "always")


def test_a_tie_is_as_fast() -> None:
    best, *_, last = found(Constraints()).fastest
    twin = dataclasses.replace(best, candidate=last.candidate)
    assert why_slower(twin, best) == "as fast"
    assert why_slower(last, best).split()[1].startswith("+")
