"""A family's largest model that fits is planned."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

import pytest

import model_registry
from lingvo_pipe.pipeline.slices import with_slices
from lingvo_pipe.planner.costs.device_needs import min_bytes_by_cell
from lingvo_pipe.planner.costs.traced_model import ModelTracer
from lingvo_pipe.planner.resources.known_devices import parse_devices
from lingvo_pipe.planner.resources.resources import Constraints
from lingvo_pipe.planner.search.fitting_plan import NothingFits
from lingvo_pipe.tools.plan.plan import main
from lingvo_pipe.tools.plan.planned_model import (
    PlannedModel,
    find_devices,
    largest_that_fits,
)
from tests.support.cases import exhaustive
from tests.support.errors import fails

TINY = "lm.text.TransformerTiny"
FAMILY = "lm.giant.L1"
NAMES = ["lm.giant.L13", "lm.giant.L103", "lm.giant.L1663"]
DEVICES = find_devices(parse_devices("8xTPUv3"))
CONSTRAINTS = Constraints(num_replicas=1, num_micro_batches=4, schedule="1f1b")
ROWS = 2


def up_to(most: int) -> Callable[[PlannedModel], PlannedModel]:
    """Returns a planner for which only models up to this many parameters fit."""

    def plan(model: PlannedModel) -> PlannedModel:
        if model.num_parameters > most:
            raise NothingFits("too large")
        return model

    return plan


@pytest.mark.exhaustive
@pytest.mark.parametrize("index", [0, 1, 2])
def test_it_plans_the_largest_and_reports_larger_ones(index: int) -> None:
    most = PlannedModel(NAMES[index]).num_parameters
    lines: list[str] = []
    model = largest_that_fits(FAMILY, PlannedModel, up_to(most), lines.append)
    assert model.name == NAMES[index]
    tried = [line.split(",")[0] for line in lines[::2]]
    assert tried == list(reversed(NAMES[index:]))
    assert set(lines[1::2]) == ({"  too large"} if index < 2 else set())


def test_a_model_that_cannot_be_planned_is_left_out() -> None:
    """One trains with local losses, which the planner does not know."""
    lines: list[str] = []
    model = largest_that_fits(TINY, PlannedModel, up_to(10**9), lines.append)
    assert model.name == TINY
    assert lines[0].startswith(f"{TINY}Local ")


def test_models_have_the_users_changes() -> None:
    lines: list[str] = []

    def changed(override: str) -> PlannedModel:
        return largest_that_fits(
            "lm.giant.L3",
            lambda name: PlannedModel(name, override),
            up_to(10**9),
            lines.append,
        )

    title = changed("input.batch_size : 7").title(
        find_devices(parse_devices("2xTPUv3"))
    )
    assert re.search(r"\b7 rows\b.*\b2 TPUv3$", title)
    with pytest.raises(AttributeError, match="'inputt'.*'input'"):
        changed("inputt : 1")


@pytest.mark.exhaustive
def test_by_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--num_replicas=1", "--schedule=1f1b"]  # A whole search takes minutes.
    assert main([f"--largest={FAMILY}", "--devices=8xTPUv3", *flags]) == 0
    first, lacks, second, nothing, title, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("lm.giant.L1663, 83,876,910,336 ")
    assert re.search(r"^  .*\b8 TPUv3\b.*recompute=", lacks)
    assert second.startswith("lm.giant.L103, ")
    assert (nothing, title[:14]) == ("", "lm.giant.L103:")
    assert "--devices=8" in rest


@pytest.mark.parametrize(
    ("family", "words"),
    [
        ("lm.giants.L13", r"--largest\b.*'lm\.giants\.L13'.*'lm\.giant\.L13'"),
        ("lm.gaint", r"--largest\b.*'lm\.gaint'.*'lm\.giant'"),
        ("nothing", r"--largest\b.*'nothing'.*--model_imports\b"),
        exhaustive("lm.giant.L10", r"--largest\b.*'lm\.giant\.L10'"),
    ],
)
def test_an_error_if_there_is_none(family: str, words: str) -> None:
    with pytest.raises(SystemExit, match=f"^error: .*{words}"):
        main([f"--largest={family}", "--devices=2xTPUv3", "--schedule=gpipe"])


@functools.cache
def _largest_cell() -> int:
    """Returns the bytes that the largest cell needs by itself."""
    params = model_registry.GetParams(TINY, "Train")
    tracer = ModelTracer(params.task, params.input.Instantiate().element_spec)
    return max(min_bytes_by_cell(tracer.trace(ROWS).costs))


def _limited(factor: float, override: str = "") -> tuple[PlannedModel, int]:
    """Returns a model and a limit, some of what its largest cell needs by itself."""
    limit = int(factor * _largest_cell())
    override = f"task.pipeline.memory_limit : {limit}; {override}"
    return PlannedModel(TINY, override, batch_size=4 * ROWS), limit


@pytest.mark.exhaustive
def test_layers_are_cut_where_no_plan_fits_otherwise() -> None:
    model, limit = _limited(0.9)
    best = model.plan(DEVICES, CONSTRAINTS).fastest[0]
    assert max(best.bytes_by_device) <= limit
    p = model_registry.GetParams(model.name, "Train")
    p.FromText("; ".join(model.changes()), separator=";")
    assert all(number > 1 for number in p.task.pipeline.slices.values())
    sliced = with_slices(p.task.pipeline, "task.pipeline").cell_tpl
    assert len(sliced) == best.boundaries[-1] > len(p.task.pipeline.cell_tpl)


@pytest.mark.parametrize(
    ("override", "changes"),
    [
        ("", []),
        exhaustive("task.pipeline.slices : auto", ["task.pipeline.slices : None"]),
        exhaustive("task.pipeline.slices : {'cells[1].feed_forward': 2}", []),
    ],
)
def test_a_plan_that_fits_has_the_models_own_slices(
    override: str, changes: list[str]
) -> None:
    model, _ = _limited(4.0, override)
    model.plan(DEVICES, CONSTRAINTS)
    assert model.changes() == changes


@pytest.mark.parametrize(
    ("factor", "override", "words"),
    [
        (
            0.7,
            "task.train.clip_gradient_single_norm_to_value : 1.0",
            r"single_norm.*1\.0",
        ),
        exhaustive(0.1, "", r"\bslices\b"),
    ],
)
def test_why_slices_do_not_help_is_said(
    factor: float, override: str, words: str
) -> None:
    model, _ = _limited(factor, override)
    with pytest.raises(NothingFits, match=words):
        model.plan(DEVICES, CONSTRAINTS)


@pytest.mark.parametrize("offload", ["always", "auto"])
def test_what_a_candidate_sets_is_not_changed_twice(offload: str) -> None:
    params = model_registry.GetParams(TINY, "Train")
    params.task.pipeline.offload = offload
    model = PlannedModel(TINY, params=params)
    assert model.changes() == ["task.pipeline.offload : None"]
    assert model.changes({"offload"}) == []


def test_tied_weights_and_loops_of_steps_are_planned_for_one_stage() -> None:
    """The trainer refuses others."""
    model = PlannedModel(TINY, "task.train.steps_per_loop : 2", batch_size=4 * ROWS)
    plans = model.plan(DEVICES, Constraints()).fastest
    assert {x.candidate.num_devices for x in plans} == {1}
    with fails(path="num_devices", got=2):
        model.plan(DEVICES, Constraints(num_devices=2))
