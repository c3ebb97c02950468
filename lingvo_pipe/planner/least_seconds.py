"""Less than which a step can't take, known before stages are. Pure.

    device 0   F F F F     B B B B         4 micro-batches
    device 1     F F F F B B B B           starts a stage later, and ends one earlier

A device has all micro-batches to compute between the first one's way to it and the last
one's way back from it. So later stages have less time; stages that make the best of it
are shorter from one to the next.
"""

from __future__ import annotations

from collections.abc import Sequence

from lingvo_pipe.pipeline.splitting.cell_seconds import CellSeconds
from lingvo_pipe.planner.candidate import Candidate


def least_seconds(
    candidate: Candidate, cells: Sequence[CellSeconds], overhead: float = 0.0
) -> float:
    """A step of this candidate takes no less.

    Args:
        candidate: how the mini-batch is shared.
        cells: seconds of one micro-batch.
        overhead: seconds of each operation beside its work.
    """
    parts = candidate.micro_batches_each
    once = [cell.forward + cell.backward for cell in cells]
    work = [each * parts for each in once]
    if candidate.recompute == "always" and candidate.schedule == "gpipe":
        # All but one at least: not where a backward pass follows its own forward pass.
        again = [cell.forward * (parts - 1) for cell in cells]
        work = list(map(float.__add__, work, again))
    # A device runs each of its stages forward and backward.
    operations = 2 * candidate.stages_per_device * parts
    return max(
        sum(work) / candidate.num_devices + operations * overhead,
        max(work),
        _with_the_way(candidate, cells, once, work),
    )


def _with_the_way(
    candidate: Candidate,
    cells: Sequence[CellSeconds],
    once: Sequence[float],
    work: Sequence[float],
) -> float:
    """By the way to a stage and back.

    With x, a part of all cells' work that stages in front of one have of it, the least
    time T leaves (T - way·x) / times to it; so with K stages
    T = way · (all work) / (1 - (1 - way / times)^K).
    """
    if candidate.stages_per_device > 1 or not min(once):
        return 0.0
    times = min(w / o for w, o in zip(work, once, strict=True))
    way = 1.0
    if candidate.schedule == "zero_bubble":  # The way back may be over long before.
        way = min(c.forward / o for c, o in zip(cells, once, strict=True))
    if not way:
        return 0.0
    left = (1 - way / times) ** candidate.num_devices
    return way * sum(once) / (1 - left)
