"""The fastest ways to run a model that fit. Pure.

Candidates are looked at in the order of the least time that they could take: if there
was no message, and no cell that could not be divided. So of each schedule and
recomputation the search ends where what is left can't be faster.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from lingvo_pipe.pipeline.splitting.cell_seconds import CellSeconds
from lingvo_pipe.planner.candidate import Candidate
from lingvo_pipe.planner.device_model import DeviceModel
from lingvo_pipe.planner.evaluation import Evaluated, evaluate
from lingvo_pipe.planner.least_seconds import least_seconds
from lingvo_pipe.planner.model_costs import ModelCosts
from lingvo_pipe.planner.too_large import TooLarge

# By the number of rows of a micro-batch: the model, and how long its cells take.
Models = Callable[[int], tuple[ModelCosts, Sequence[CellSeconds]]]


@dataclasses.dataclass(frozen=True)
class Found:
    """What a search has found.

    Attributes:
        fastest: of each schedule and recomputation that fits, the fastest first.
        num_slower: how many more there are that are slower, or can't be faster.
        too_large: those that don't fit, about the least first.
    """

    fastest: Sequence[Evaluated]
    num_slower: int
    too_large: Sequence[TooLarge]


def search(
    candidates: Iterable[Candidate],
    models: Models,
    device: DeviceModel,
    batch_size: int,
) -> Found:
    """Finds the fastest.

    Args:
        candidates: to choose from.
        models: see `Models`.
        device: on which it runs.
        batch_size: B.
    """
    fastest: dict[tuple[str, str], Evaluated] = {}
    too_large: list[TooLarge] = []
    num_slower, overhead = 0, device.operation_seconds

    def model_of(candidate: Candidate) -> tuple[ModelCosts, Sequence[CellSeconds]]:
        return models(batch_size // candidate.num_micro_batches)

    bounds = [
        (least_seconds(candidate, model_of(candidate)[1], overhead), i, candidate)
        for i, candidate in enumerate(candidates)
    ]
    for bound, _, candidate in sorted(bounds):
        best = fastest.get(candidate.way)
        if best is not None and bound >= best.step_seconds:
            num_slower += 1
            continue
        result = evaluate(candidate, *model_of(candidate), device)
        if isinstance(result, TooLarge):
            too_large.append(result)
            continue
        num_slower += best is not None
        if best is None or result.step_seconds < best.step_seconds:
            fastest[candidate.way] = result
    return Found(
        sorted(fastest.values(), key=lambda each: each.step_seconds),
        num_slower,
        sorted(too_large, key=lambda each: each.needs.share()),
    )
