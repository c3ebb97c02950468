"""Where the time of a step goes, and why one is slower than another. Pure."""

from __future__ import annotations

import math
from statistics import fmean

from lingvo_pipe.pipeline.schedules.schedule import Kind
from lingvo_pipe.pipeline.simulation.bubble import split_time
from lingvo_pipe.planner.amounts import seconds_text
from lingvo_pipe.planner.evaluation import Evaluated


def time_parts(evaluated: Evaluated) -> dict[str, float]:
    """Seconds of a step by what they are spent on: the mean of the devices."""
    splits = split_time(evaluated.timeline)

    def mean(part: str) -> float:
        return fmean(getattr(split.idle, part) for split in splits)

    again = fmean(split.busy.get(Kind.RECOMPUTE, 0.0) for split in splits)
    busy = fmean(sum(split.busy.values()) for split in splits)
    return {
        "computing": busy - again,
        "recomputation": again,
        "bubble": mean("fill_drain"),
        "imbalance": mean("imbalance"),
        "communication": mean("communication"),
        "overhead": mean("overhead"),
        "update": evaluated.step_seconds - evaluated.timeline.step_seconds,
    }


def why_slower(slower: Evaluated, best: Evaluated) -> str:
    """The part of the time that grows most, as text; or that none is lost."""
    if math.isclose(slower.step_seconds, best.step_seconds):
        return "as fast"
    ours, theirs = time_parts(best), time_parts(slower)
    name = max(theirs, key=lambda part: theirs[part] - ours[part])
    return f"{name} +{seconds_text(theirs[name] - ours[name])}"
