from __future__ import annotations

import pytest

from lingvo_pipe.pipeline.schedules.gpipe import gpipe
from lingvo_pipe.pipeline.schedules.one_f_one_b import one_f_one_b
from lingvo_pipe.pipeline.simulation.comparison import compare
from lingvo_pipe.pipeline.simulation.costs import Costs, StageCosts
from lingvo_pipe.pipeline.simulation.simulate import simulate

SCHEDULE = gpipe(2, 3)
EVEN = simulate(SCHEDULE, Costs((StageCosts(0.010, 0.020),) * 2))


def _rows(table: str, title: str) -> dict[str, list[str]]:
    """The rows of a block: from their names to the words after it."""
    lines = table.split(f"{title}\n")[1].split("\n\n")[0].splitlines()
    return {line[:26].strip(): line[26:].split() for line in lines}


def test_the_table() -> None:
    stages = (StageCosts(0.010, 0.020), StageCosts(0.015, 0.020, send_backward=0.001))
    table = compare(EVEN, simulate(SCHEDULE, Costs(stages)))
    assert table.splitlines()[:3] == [
        "                               predicted      measured  difference",
        "step                          120.000 ms    136.000 ms      +13.3%",
        "bubble                             25.0%         28.3%      +13.2%",
    ]
    assert _rows(table, "device 1") == {
        "forward": ["30.000", "ms", "45.000", "ms", "+50.0%"],
        "backward": ["60.000", "ms", "60.000", "ms", "+0.0%"],
        "idle: filling, draining": ["30.000", "ms", "30.000", "ms", "+0.0%"],
        "idle: imbalance": ["0.000", "ms", "0.000", "ms"],
        "idle: communication": ["0.000", "ms", "1.000", "ms"],
        "idle: overhead": ["0.000", "ms", "0.000", "ms"],
    }
    mean = _rows(table, "mean of the devices")
    assert mean["forward"] == ["30.000", "ms", "37.500", "ms", "+25.0%"]
    assert list(mean) == list(_rows(table, "device 0"))


def test_other_schedules_are_refused() -> None:
    other = simulate(one_f_one_b(2, 3), Costs((StageCosts(0.010, 0.020),) * 2))
    with pytest.raises(ValueError, match=r"\bschedule\b"):
        compare(EVEN, other)
