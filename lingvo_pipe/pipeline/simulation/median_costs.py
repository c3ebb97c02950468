"""What steps of one schedule usually cost. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from statistics import median
from typing import Any

from lingvo_pipe.pipeline.simulation.costs import Costs, StageCosts


def median_costs(steps: Sequence[Costs]) -> Costs:
    """Each cost is the median of that in the steps, at least one, of one schedule."""
    stages = zip(*(costs.stages for costs in steps), strict=True)
    return Costs(
        stages=tuple(map(_median_stage, stages)),
        overhead=median(costs.overhead for costs in steps),
    )


def _median_stage(stages: Sequence[StageCosts]) -> StageCosts:
    names = [field.name for field in dataclasses.fields(StageCosts)]
    costs: dict[str, Any] = {
        name: _median([getattr(stage, name) for stage in stages]) for name in names
    }
    return StageCosts(**costs)


def _median(values: Sequence[float | None]) -> float | None:
    given = [value for value in values if value is not None]
    return median(given) if given else None
