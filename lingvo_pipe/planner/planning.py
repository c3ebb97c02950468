"""Plans how to run a model, or says what would have to change for it to fit. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from lingvo_pipe.planner.candidate import Candidate, candidates
from lingvo_pipe.planner.constraints import Constraints
from lingvo_pipe.planner.device_model import DEVICES, DeviceModel
from lingvo_pipe.planner.evaluation import TooLarge
from lingvo_pipe.planner.plan_report import gib, name_of
from lingvo_pipe.planner.search import Found, Models, search

_MOST_DEVICES = 4096


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
        device = dataclasses.replace(self.device, slowdown=slowdown)
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
        ValueError: if constraints contradict each other, or nothing fits.
    """
    found = _search(models, resources, constraints)
    if found.fastest:
        return found
    least, device = _least(found.too_large), resources.device
    raise ValueError(
        f"A device must hold its share of the model; {device.name} has "
        f"{gib(device.usable)} GiB for it, and the least that any way on {resources} "
        f"needs is {gib(least.needed)} GiB, {gib(least.needed - device.usable)} GiB "
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
    """Whether there is any way to run a model."""
    return bool(_search(models, resources, constraints).fastest)


def _search(models: Models, resources: Resources, constraints: Constraints) -> Found:
    num_cells = models(resources.batch_size)[0].num_cells
    allowed = allowed_candidates(resources, constraints, num_cells)
    return search(allowed, models, resources.device, resources.batch_size)


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
    return constraints.allowed(every)


def _advice(models: Models, resources: Resources, constraints: Constraints) -> str:
    """The nearest changes after which it would fit."""
    would = [
        text
        for changes in (_more_devices, _fewer_rows, _larger_devices)
        if (text := _first_that_fits(changes(resources), models, constraints))
    ]
    if would:
        return f"It would fit {', or '.join(would)}."
    return "More devices don't help: a cell by itself is too large. Make cells smaller."


def _first_that_fits(
    changes: Iterator[tuple[str, Resources]], models: Models, constraints: Constraints
) -> str | None:
    for text, changed in changes:
        try:
            if fits(models, changed, constraints):
                return text
        except ValueError:  # The constraints are not for so many.
            continue
    return None


def _more_devices(resources: Resources) -> Iterator[tuple[str, Resources]]:
    number = 2 * resources.num_devices
    while number <= _MOST_DEVICES:
        changed = dataclasses.replace(resources, num_devices=number)
        yield f"on {changed}", changed
        number *= 2


def _fewer_rows(resources: Resources) -> Iterator[tuple[str, Resources]]:
    rows = resources.batch_size // 2
    while rows:
        yield f"with {rows} rows", dataclasses.replace(resources, batch_size=rows)
        rows //= 2


def _larger_devices(resources: Resources) -> Iterator[tuple[str, Resources]]:
    for device in sorted(DEVICES.values(), key=lambda each: each.usable):
        if device.usable > resources.device.usable:
            changed = dataclasses.replace(resources, device=device)
            yield f"on {changed}", changed
