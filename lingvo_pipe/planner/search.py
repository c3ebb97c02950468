"""The fastest ways to run a model that fit. Pure.

Candidates are looked at in the order of the least time that they could take: the work
of a device if there was no bubble, no message and no cell that could not be divided.
So the search ends where what is left can't be among the best.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from lingvo_pipe.planner.candidate import Candidate
from lingvo_pipe.planner.cell_seconds import CellSeconds
from lingvo_pipe.planner.device_model import DeviceModel
from lingvo_pipe.planner.evaluation import Evaluated, TooLarge, evaluate
from lingvo_pipe.planner.model_costs import ModelCosts

# By the number of rows of a micro-batch: the model, and how long its cells take.
Models = Callable[[int], tuple[ModelCosts, Sequence[CellSeconds]]]


@dataclasses.dataclass(frozen=True)
class Found:
    """What a search has found.

    Attributes:
        best: the fastest, best first.
        slower: how many more fit.
        too_large: those that don't fit, the least first.
    """

    best: Sequence[Evaluated]
    slower: int
    too_large: Sequence[TooLarge]


def search(
    candidates: Iterable[Candidate],
    models: Models,
    device: DeviceModel,
    batch_size: int,
    slot_bytes: float,
    num_best: int,
) -> Found:
    """Finds the fastest.

    Args:
        candidates: to choose from.
        models: see `Models`.
        device: on which it runs.
        batch_size: B.
        slot_bytes: what the optimizer keeps for a parameter.
        num_best: how many to find.
    """
    fitting: list[Evaluated] = []
    too_large: list[TooLarge] = []
    slower = 0

    def least(candidate: Candidate) -> float:
        model, seconds = models(batch_size // candidate.num_micro_batches)
        return _least_seconds(candidate, seconds)

    bounds = sorted(((least(c), i, c) for i, c in enumerate(candidates)))
    for bound, _, candidate in bounds:
        if len(fitting) >= num_best and bound > fitting[num_best - 1].step_seconds:
            slower += 1
            continue
        model, seconds = models(batch_size // candidate.num_micro_batches)
        result = evaluate(candidate, model, seconds, device, slot_bytes)
        if isinstance(result, TooLarge):
            too_large.append(result)
        else:
            fitting.append(result)
            fitting.sort(key=lambda each: each.step_seconds)
    slower += max(0, len(fitting) - num_best)
    too_large.sort(key=lambda each: each.needed)
    return Found(fitting[:num_best], slower, too_large)


def _least_seconds(candidate: Candidate, cells: Sequence[CellSeconds]) -> float:
    """A step of this candidate takes no less."""
    again = candidate.recompute == "always" and candidate.schedule == "gpipe"
    work = [cell.forward * (1 + again) + cell.backward for cell in cells]
    each = max(sum(work) / candidate.num_devices, max(work))
    return each * candidate.micro_batches_each
