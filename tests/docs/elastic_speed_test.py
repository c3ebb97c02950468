"""The page's estimate of an elastic job's speed agrees with simulated losses."""

from __future__ import annotations

import heapq
import math
import random
import re
from typing import NamedTuple

import pytest

from lingvo_pipe.cli.elastic_devices import Cut, cut_for
from tests.docs.pages import page, python_blocks

((_, CODE),) = python_blocks(page("clusters"))
HOURS = 20_000
MACHINES, NUM_SPARE = 1_000, 8
COMPLETE = Cut(125, 8)


class Case(NamedTuple):
    """A job's arguments for `kept_speed`."""

    away: float
    wait: float
    save_every: float
    lost_every: float = 3600.0
    notice: float = 30.0
    restart: float = 120.0
    replicas: int = COMPLETE.replicas
    left: int = cut_for(999, COMPLETE, COMPLETE.replicas).replicas


def _formula(case: Case) -> tuple[float, float, float, float]:
    names: dict[str, object] = {"math": math}
    exec(CODE, names)
    return names["kept_speed"](**case._asdict())  # type: ignore[operator]


def _speed(machines: int, devices: int) -> float:
    """Returns the speed of an elastic job of up to `devices` devices."""
    complete = COMPLETE._replace(replicas=devices // COMPLETE.per_replica)
    if machines >= devices:
        return complete.replicas / COMPLETE.replicas
    return cut_for(machines, complete, complete.replicas).replicas / COMPLETE.replicas


def _simulated(
    case: Case, draw: random.Random, is_elastic: bool, devices: int = MACHINES
) -> float:
    """Returns the kept fraction of speed in a random series of losses."""
    now = done = unsaved = 0.0
    lost, returns = draw.expovariate(1 / case.lost_every), list[float]()
    while now < HOURS * 3600:
        event = max(now, min([lost, *returns[:1]]))
        speed = _speed(MACHINES - len(returns), devices)
        done += (event - now) * speed
        unsaved, now = (unsaved + event - now) % case.save_every, event
        if returns and returns[0] < lost:
            heapq.heappop(returns)
            if _speed(MACHINES - len(returns), devices) > speed:
                now, unsaved = now + case.restart, 0.0  # It grows after a checkpoint.
            continue
        done -= unsaved * speed
        unsaved = 0.0
        if is_elastic:
            heapq.heappush(returns, lost + case.away)
            waits = MACHINES - len(returns) < devices  # Not for spare machines.
            now += case.notice + case.wait * waits + case.restart
        else:
            now = max(now, lost + case.away) + case.restart
            while (later := lost + draw.expovariate(1 / case.lost_every)) < now:
                lost = later
                now = max(now, lost + case.away + case.restart)
            lost = later
            continue
        lost += draw.expovariate(1 / case.lost_every)
    return done / now


CASES = [Case(600.0, 60.0, 300.0), Case(3600.0, 60.0, 300.0), Case(600.0, 0.0, 60.0)]


@pytest.mark.parametrize("case", CASES)
def test_the_formula_agrees_with_simulated_losses(case: Case) -> None:
    waiting, elastic, spare, replaced = _formula(case)
    draw = random.Random(0)
    simulated = (
        _simulated(case, draw, is_elastic=False),
        _simulated(case, draw, is_elastic=True),
        _simulated(case, draw, is_elastic=True, devices=MACHINES - NUM_SPARE),
    )
    assert simulated == pytest.approx((waiting, elastic, spare), abs=0.03)
    assert max(elastic, waiting) < spare < replaced < 1


def test_the_page_has_the_formulas_numbers() -> None:
    rows = re.findall(r"^\| (10 minutes|1 hour) \| (.*) \|$", page("clusters"), re.M)
    assert len(rows) == 2
    for away, numbers in rows:
        seconds = {"10 minutes": 600.0, "1 hour": 3600.0}[away]
        first = _formula(Case(seconds, 60.0, 300.0))
        second = _formula(Case(seconds, 0.0, 60.0))
        values = *first[:3], second[2], first[3]
        assert numbers.split(" | ") == [f"{value:.1%}" for value in values]
