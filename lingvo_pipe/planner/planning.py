"""Plans how to run a model, or says what would have to change for it to fit. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from lingvo_pipe.planner.candidate import Candidate, candidates
from lingvo_pipe.planner.cell_alone import bytes_alone
from lingvo_pipe.planner.constraints import Constraints
from lingvo_pipe.planner.device_model import DEVICES, DeviceModel
from lingvo_pipe.planner.evaluation import Evaluated, evaluate
from lingvo_pipe.planner.plan_report import amount, name_of, needed_text
from lingvo_pipe.planner.search import Found, Models, search
from lingvo_pipe.planner.too_large import TooLarge

_MOST_DEVICES = 4096


class NothingFits(ValueError):
    """There are ways to run a model, but all need more memory than devices have."""


@dataclasses.dataclass(frozen=True)
class Resources:
    """What there is to run a model on, and what to run.

    Attributes:
        device: the kind of devices.
        num_devices: how many there are.
        batch_size: B, rows of a mini-batch.
    """

    device: DeviceModel
    num_devices: int
    batch_size: int

    def slowed(self, slowdown: float) -> Resources:
        """The same devices with what has been found of them together."""
        device = dataclasses.replace(
            self.device, slowdown=slowdown, slowed_by=self.num_devices
        )
        return dataclasses.replace(self, device=device)

    def __str__(self) -> str:
        return f"{self.num_devices} {self.device.name}"


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
    found = search(
        _allowed(models, resources, constraints),
        models,
        resources.device,
        resources.batch_size,
    )
    if found.fastest:
        return found
    least, device = _least(found.too_large), resources.device
    raise NothingFits(
        f"A device must hold its share of the model; {device.name} has "
        f"{amount(device.usable)} for it, and the least that any way on {resources} "
        f"needs is {needed_text(least)}, {amount(least.needed - device.usable)} "
        f"more: {name_of(least.candidate)}. "
        f"{_advice(models, resources, constraints)}"
    )


def _least(too_large: Sequence[TooLarge]) -> TooLarge:
    """The one that needs least."""
    found = too_large[0]
    for each in too_large[1:]:
        if each.needs.can_fit(found.needed - 1) and each.needed < found.needed:
            found = each
    return found


def fits(models: Models, resources: Resources, constraints: Constraints) -> bool:
    """Whether there is any way to run a model.

    Raises:
        ValueError: if constraints contradict each other.
    """
    device, rows = resources.device, resources.batch_size
    return any(
        isinstance(
            evaluate(each, *models(rows // each.num_micro_batches), device), Evaluated
        )
        for each in reversed(_allowed(models, resources, constraints))
    )


def _allowed(
    models: Models, resources: Resources, constraints: Constraints
) -> list[Candidate]:
    # Of a size that is looked at anyhow, for each may have to be traced.
    rows = max(resources.batch_size // (constraints.num_micro_batches or 1), 1)
    num_cells = models(rows)[0].num_cells
    return allowed_candidates(resources, constraints, num_cells)


def allowed_candidates(
    resources: Resources, constraints: Constraints, num_cells: int
) -> list[Candidate]:
    """All ways to run a model of L cells, as far as constraints allow them.

    Raises:
        ValueError: if they allow none.
    """
    every = candidates(
        resources.num_devices,
        num_cells,
        resources.batch_size,
        resources.device.has_replicas,
    )
    no_replicas = "TPUs have no replicas yet, num_replicas is 1"
    rules = [] if resources.device.has_replicas else [no_replicas]
    return constraints.allowed(every, rules)


def _advice(models: Models, resources: Resources, constraints: Constraints) -> str:
    """The nearest changes after which it would fit."""
    alone = _too_large_alone(models, resources, constraints)
    changes = [_fewer_rows, _larger_devices, _fewer_constraints]
    if not alone:
        changes.insert(0, _more_devices)
    num_cells = models(resources.batch_size)[0].num_cells
    would = [
        text
        for change in changes
        if (text := _first_that_fits(change(resources, constraints, num_cells), models))
    ]
    if would:
        advice = f"It would fit {', or '.join(dict.fromkeys(would))}."
        return " ".join(filter(None, [advice, alone]))
    if alone:
        return f"{alone} Make cells smaller."
    return (
        f"No single change was found with which it would fit: up to {_MOST_DEVICES:,} "
        "devices, fewer rows, larger devices, or one thing less that is asked for. "
        "Make cells smaller, or change several of these."
    )


def _too_large_alone(
    models: Models, resources: Resources, constraints: Constraints
) -> str:
    """Says which cell no number of devices has memory for, if there is one."""
    rows = resources.batch_size
    smallest, _ = models(rows // (constraints.num_micro_batches or rows))
    needed, cell = max((x, -i) for i, x in enumerate(bytes_alone(smallest)))
    if needed <= resources.device.usable:
        return ""
    return (
        f"More devices don't help: cell {-cell} by itself needs {amount(needed)} at "
        "least."
    )


# What is changed, as text, and the changed.
_Changes = Iterator[tuple[str, Resources, Constraints]]


def _first_that_fits(changes: _Changes, models: Models) -> str | None:
    for text, resources, constraints in changes:
        try:
            if fits(models, resources, constraints):
                return text
        except ValueError:  # The constraints are not for so many.
            continue
    return None


def _more_devices(
    resources: Resources, constraints: Constraints, num_cells: int
) -> _Changes:
    """Twice as many, and so on; and one for each cell, which is most for a pipeline."""
    numbers = {num_cells} if num_cells > resources.num_devices else set()
    number = 2 * resources.num_devices
    while number <= _MOST_DEVICES:
        numbers.add(number)
        number *= 2
    name, but = "num_devices", ""
    if name in constraints.given:  # More could not be used.
        but = f"without {constraints.shown(name)}"
        constraints = constraints.without(name)
        yield but, resources, constraints
    for number in sorted(numbers):
        changed = dataclasses.replace(resources, num_devices=number)
        yield f"on {changed} {but}".rstrip(), changed, constraints


def _fewer_rows(
    resources: Resources, constraints: Constraints, num_cells: int
) -> _Changes:
    rows = resources.batch_size // 2
    while rows:
        changed = dataclasses.replace(resources, batch_size=rows)
        yield f"with {rows} row{'s' if rows > 1 else ''}", changed, constraints
        rows //= 2


def _larger_devices(
    resources: Resources, constraints: Constraints, num_cells: int
) -> _Changes:
    for device in sorted(DEVICES.values(), key=lambda each: each.usable):
        if device.usable > resources.device.usable:
            changed = dataclasses.replace(resources, device=device)
            yield f"on {changed}", changed, constraints


def _fewer_constraints(
    resources: Resources, constraints: Constraints, num_cells: int
) -> _Changes:
    for name in constraints.given:
        yield (
            f"without {constraints.shown(name)}",
            resources,
            constraints.without(name),
        )
