"""How far stages were ahead of one another. Pure."""

from __future__ import annotations

import bisect

from lingvo_pipe.pipeline.schedules.schedule import Kind
from lingvo_pipe.pipeline.simulation.timeline import Timeline


def steps_ahead(timeline: Timeline) -> dict[int, int]:
    """For each stage but the last, how many steps it was ahead of the next at most.

    Args:
        timeline: of several steps.

    Returns:
        By the stage: of the steps before one that it began, how many the next stage had
        not made at that moment. MAX_STEPS_AHEAD is the most that can be.
    """
    schedule = timeline.schedule
    begun: dict[int, dict[int, float]] = {k: {} for k in range(schedule.num_stages - 1)}
    made: dict[int, list[float]] = {k + 1: [] for k in begun}
    for _, (op, _, start, end) in timeline.ops():
        n = op.micro_batch // schedule.micro_batches_per_step
        if op.kind is Kind.FORWARD and op.stage in begun:
            begun[op.stage].setdefault(n, start)
        elif op.kind is Kind.UPDATE and op.stage in made:
            made[op.stage].append(end)
    return {
        k: max(
            n - bisect.bisect_right(sorted(made[k + 1]), start)
            for n, start in begun[k].items()
        )
        for k in begun
    }
