"""Plans how to run a model, or says what would have to change for it to fit. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from lingvo_pipe.planner.advice import MEMORY_LIMIT, advice, count_cells
from lingvo_pipe.planner.amounts import amount
from lingvo_pipe.planner.constraints import Constraints
from lingvo_pipe.planner.plan_report import name_of, needed_text
from lingvo_pipe.planner.resources import Resources, allowed_candidates
from lingvo_pipe.planner.search import Found, Models, search
from lingvo_pipe.planner.too_large import TooLarge


class NothingFits(ValueError):
    """There are ways to run a model, but all need more memory than devices have."""


def plan(models: Models, resources: Resources, constraints: Constraints) -> Found:
    """Finds the fastest ways to run a model.

    Args:
        models: the model's costs, by rows.
        resources: what there is.
        constraints: what is settled already.

    Raises:
        NothingFits: if nothing fits.
        ValueError: if constraints contradict each other.
    """
    num_cells = count_cells(models, resources, constraints)
    found = search(
        allowed_candidates(resources, constraints, num_cells),
        models,
        resources.limited,
        resources.batch_size,
    )
    if found.fastest:
        return found
    least, usable = _least(found.too_large), resources.usable
    raise NothingFits(
        f"A device must hold its share of the model; {_has(resources)} "
        f"{amount(usable)} for it, and the least that any way on {resources} "
        f"needs is {needed_text(least)}, {amount(least.needed - usable)} "
        f"more: {name_of(least.candidate)}. {advice(models, resources, constraints)}"
    )


def _has(resources: Resources) -> str:
    if resources.usable < resources.device.usable:
        return f"{MEMORY_LIMIT}={resources.memory_limit} leaves"
    return f"{resources.device.name} has"


def _least(too_large: Sequence[TooLarge]) -> TooLarge:
    """The one that needs least."""
    found = too_large[0]
    for each in too_large[1:]:
        if each.needs.can_fit(found.needed - 1) and each.needed < found.needed:
            found = each
    return found
