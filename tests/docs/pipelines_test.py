"""Tables of params, of schedules as simulated, and of the planner's candidates."""

from __future__ import annotations

import re

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.pipeline.pipelining_params import define_pipelining_params
from lingvo_pipe.pipeline.schedules.by_name import (
    SCHEDULE_NAMES,
    V_SHAPED_NAMES,
    make_schedule,
)
from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.simulation.costs import Costs, StageCosts
from lingvo_pipe.pipeline.simulation.simulate import simulate
from lingvo_pipe.planner.resources.candidate import candidates
from tests.docs.pages import PAGES, page
from tests.pipeline.schedules.stash_sizes import peak_stash_sizes

NUM_DEVICES, NUM_MICRO_BATCHES = 16, 64
TWO_STAGES = ("interleaved", "interleaved_zero_bubble", *V_SHAPED_NAMES)


def _idle(schedule: Schedule, input_gradient: float, weight_gradient: float) -> str:
    """Returns the idle part of a step, with these costs of B and W, and 1 of F."""
    costs = StageCosts(
        forward=1.0,
        backward=input_gradient + weight_gradient,
        input_gradient=input_gradient,
        weight_gradient=weight_gradient,
    )
    timeline = simulate(schedule, Costs((costs,) * schedule.num_stages))
    return f"{timeline.bubble_fraction:.1%}"


def _row(name: str) -> str:
    num_stages = 2 if name in TWO_STAGES else 1
    schedule = make_schedule(
        name, NUM_DEVICES, NUM_MICRO_BATCHES, num_stages, recompute="never"
    )
    stashed = max(sizes.residuals for sizes in peak_stash_sizes(schedule)) / num_stages
    idle = _idle(schedule, 1.0, 1.0), _idle(schedule, 1.2, 0.8)
    return f"| `{name}` | {num_stages} | {stashed:g} | {' | '.join(idle)} |"


def test_the_table_of_schedules_is_simulated() -> None:
    text = page("pipelines")
    assert f"{NUM_DEVICES} devices and {NUM_MICRO_BATCHES} micro-batches" in text
    rows = re.findall(r"^\| `\w+` \| [12] \| .*", text, re.MULTILINE)
    assert rows == [_row(name) for name in SCHEDULE_NAMES if name != "local"]


def test_the_table_of_params_is_complete() -> None:
    p = Params()
    define_pipelining_params(p)
    table = page("pipelines").partition("## Schedules")[0]
    heads = re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
    assert {*re.findall(r"\w+", " ".join(heads))} == set(dict(p.IterParams()))


def test_the_planners_table_has_its_candidates() -> None:
    expected: dict[str, tuple[set[int], set[str]]] = {}
    for candidate in candidates(num_devices=8, num_cells=64, batch_size=64):
        stages, policies = expected.setdefault(candidate.schedule, (set(), set()))
        stages.add(candidate.stages_per_device)
        policies.add(str(candidate.recompute))
    text = PAGES["lingvo_pipe/tools/plan/README.md"]
    row = r"^\| (\w+(?:, \w+)*) \| (\d)(?: to (\d))? \| (.*) \|$"
    assert {
        name: ({*range(int(first), int(last or first) + 1)}, {*policies.split(", ")})
        for names, first, last, policies in re.findall(row, text.replace("`", ""), re.M)
        for name in names.split(", ")
    } == expected
