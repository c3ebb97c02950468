"""A search for the fastest candidates that fit into memory.

Candidates are evaluated in the order of a lower bound on their step time. The bound
assumes that messages take no time and that cells can be divided. The search for each
variant (`Candidate.variant`) ends when no remaining candidate can be faster.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from lingvo_pipe.core.activity import set_detail
from lingvo_pipe.pipeline.splitting.cell_costs import CellSeconds
from lingvo_pipe.planner.costs.device_needs import OversizedCandidate
from lingvo_pipe.planner.costs.model_costs import Models
from lingvo_pipe.planner.resources.candidate import Candidate
from lingvo_pipe.planner.resources.device_model import DeviceModel
from lingvo_pipe.planner.resources.resources import Resources
from lingvo_pipe.planner.search.candidate_evaluation import (
    Evaluation,
    evaluate,
    max_overhead,
)


@dataclasses.dataclass(frozen=True)
class SearchResult:
    """The fastest candidates that fit into memory, and some that do not fit."""

    fastest: Sequence[Evaluation]  # The best of each variant.
    num_slower: int  # Other candidates, which are slower or cannot be faster.
    oversized: Sequence[OversizedCandidate]  # Roughly the smallest first.


def search(
    candidates: Iterable[Candidate],
    models: Models,
    resources: Resources,
) -> SearchResult:
    """Finds the fastest candidate that fits, for each variant."""
    fastest: dict[tuple[Any, ...], Evaluation] = {}
    oversized: list[OversizedCandidate] = []
    bounds, num_slower, batch_size = [], 0, resources.batch_size
    for candidate in candidates:
        costs, seconds = models(batch_size // candidate.num_micro_batches)
        devices = resources.of_pipeline(candidate)
        bound = step_time_lower_bound(candidate, seconds, devices, costs.left_out)
        bounds.append((bound, candidate))
    for i, (bound, candidate) in enumerate(sorted(bounds, key=lambda pair: pair[0])):
        set_detail(f"way {i + 1:,} of {len(bounds):,}")
        best = fastest.get(candidate.variant)
        if best is not None and bound >= best.step_seconds:
            num_slower += 1
            continue
        costs, seconds = models(batch_size // candidate.num_micro_batches)
        result = evaluate(candidate, costs, seconds, resources.of_pipeline(candidate))
        if isinstance(result, OversizedCandidate):
            oversized.append(result)
            continue
        num_slower += best is not None
        if best is None or result.step_seconds < best.step_seconds:
            fastest[candidate.variant] = result
    return SearchResult(
        sorted(fastest.values(), key=lambda x: x.step_seconds),
        num_slower,
        sorted(oversized, key=lambda x: x.order),
    )


def step_time_lower_bound(
    candidate: Candidate,
    cells: Sequence[CellSeconds],
    devices: Sequence[DeviceModel],
    left_out: Sequence[float] = (),
) -> float:
    """Returns a lower bound on the candidate's step time with any stages.

    device 0   F F F F     B B B B         4 micro-batches
    device 1     F F F F B B B B           starts a stage later and ends one earlier

    A device computes all micro-batches between the arrival of the first one and the
    return of the last one. So later stages have less time, and the best stages are each
    shorter than the one before. `devices` are the devices of each replica, in order.
    For `left_out` see `ModelCosts`.
    """
    slowness = [device.slowness for device in devices]
    num_micro_batches = candidate.micro_batches_per_replica
    once = [cell.forward + cell.backward for cell in cells]
    work = [seconds * num_micro_batches for seconds in once]
    if candidate.recompute == "always" and candidate.schedule == "gpipe":
        # At most one micro-batch is not recomputed: its passes follow each other.
        pairs = zip(cells, left_out or [0.0] * len(cells), strict=True)
        once_more = [cell.forward * (1 - share) for cell, share in pairs]
        recomputation = [seconds * (num_micro_batches - 1) for seconds in once_more]
        work = list(map(float.__add__, work, recomputation))
    # A device runs each of its stages forward and backward.
    num_operations = 2 * candidate.stages_per_device * num_micro_batches
    fastest = min(slowness)  # The last two bounds take all devices to be this fast.
    return max(
        sum(work) / sum(1 / x for x in slowness)
        + num_operations * max_overhead(devices),
        max(work) * fastest,
        _bound_by_distance(candidate, cells, once, work) * fastest,
    )


def _bound_by_distance(
    candidate: Candidate,
    cells: Sequence[CellSeconds],
    once: Sequence[float],
    work: Sequence[float],
) -> float:
    """Returns a lower bound on step time, since late stages start late and end early.

    Let x be the seconds of one micro-batch in all stages before a stage. In a step of T
    seconds, the stage has at most (T - distance·x) / repeats for one micro-batch. So
    for K stages T = distance · (one micro-batch's seconds in all stages)
    / (1 - (1 - distance / repeats)^K).

    `once` and `work` are each cell's seconds for one and for all micro-batches.
    `repeats` is their least ratio. `distance` is the part of x that the stage waits.
    """
    if candidate.stages_per_device > 1 or not min(once):
        return 0.0
    repeats = min(w / o for w, o in zip(work, once, strict=True))
    distance = 1.0
    if candidate.schedule == "zero_bubble":  # Input gradients may return much earlier.
        distance = min(c.forward / o for c, o in zip(cells, once, strict=True))
    if not distance:
        return 0.0
    left = (1 - distance / repeats) ** candidate.num_devices
    return distance * sum(once) / (1 - left)
