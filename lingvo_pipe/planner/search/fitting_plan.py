"""A plan for a model or, if it does not fit, an error that suggests changes.

    The model does not fit      With a change, does it fit?
    on 8 devices                on 16 yes, on 12 yes, on 10 yes, on 9 no
    with 32 rows                with 16 no, with 8 yes
    with K=4, M=8               without K=4 yes, without M=8 no

So the error suggests 10 devices, or 8 rows, or to leave out K=4.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.quantities import bytes_text
from lingvo_pipe.planner.costs.device_needs import (
    OversizedCandidate,
    min_bytes_by_cell,
)
from lingvo_pipe.planner.costs.model_costs import Models
from lingvo_pipe.planner.resources.known_devices import DEVICES
from lingvo_pipe.planner.resources.resources import (
    Constraints,
    Resources,
    allowed_candidates,
)
from lingvo_pipe.planner.search.candidate_evaluation import Evaluation, find_stages
from lingvo_pipe.planner.search.fastest_candidates import SearchResult, search
from lingvo_pipe.planner.search.plan_report import needed_text
from lingvo_pipe.planner.search.roles_by_stage import faster_by_stage

_MAX_DEVICES = 4096
_NUM_DEVICES = "num_devices"


class NothingFits(UserValueError):
    """Error: every way to run a model needs more memory than the devices have."""


def plan(
    models: Models, resources: Resources, constraints: Constraints
) -> SearchResult:
    """Finds the fastest ways to run a model that satisfy the constraints.

    Raises:
        NothingFits: if no way fits into the devices' memory.
        UserValueError: if the constraints contradict each other.
    """
    num_cells = _count_cells(models, resources, constraints)
    allowed = allowed_candidates(resources, constraints, num_cells)
    result = search(allowed, models, resources)
    if result.fastest:
        by_stage = _by_stage(result.fastest, models, resources, constraints)
        fastest = sorted([*result.fastest, *by_stage], key=lambda x: x.step_seconds)
        return dataclasses.replace(result, fastest=fastest)
    smallest = result.oversized[0]
    for oversized in result.oversized[1:]:
        most = oversized.limit + smallest.excess
        if oversized.needs.can_fit(most - 1) and oversized.needed_bytes < most:
            smallest = oversized
    raise NothingFits(
        f"The model does not fit: {_offer(resources, constraints)} per device for it, "
        f"and in the smallest way on {resources} a device needs "
        f"{needed_text(smallest)}: {smallest.candidate}.",
        hint=_Setting(models, resources, constraints).suggest_changes(),
    )


def _by_stage(
    fastest: Sequence[Evaluation],
    models: Models,
    resources: Resources,
    constraints: Constraints,
) -> list[Evaluation]:
    """Returns faster ways whose stages differ in their roles, if they are allowed."""
    if {"recompute", "has_own_recompute"} & set(constraints.given):
        return []
    if constraints.offload not in (None, "never"):
        return []
    may_offload = constraints.may_offload and constraints.offload is None
    return faster_by_stage(
        fastest, models, resources, may_offload and resources.have_host_links
    )


def _offer(resources: Resources, constraints: Constraints) -> str:
    limit = f"{constraints.limit_name}={resources.memory_limit} leaves"
    offers = [
        f"{limit if x.usable_bytes < kind.usable_bytes else f'{x.name} has'} "
        f"{bytes_text(x.usable_bytes)}"
        for x, (_, kind) in zip(resources.limited_kinds, resources.kinds, strict=True)
    ]
    return " and ".join(dict.fromkeys(offers))


def fits(models: Models, resources: Resources, constraints: Constraints) -> bool:
    """Returns whether any way to run a model fits and satisfies the constraints.

    Raises:
        UserValueError: if the constraints contradict each other.
    """
    rows = resources.batch_size
    num_cells = _count_cells(models, resources, constraints)
    for candidate in reversed(allowed_candidates(resources, constraints, num_cells)):
        costs, seconds = models(rows // candidate.num_micro_batches)
        if max(costs.memory.by_cell()) > resources.usable_bytes:
            continue  # A quick check, for models with far too large cells.
        devices = resources.of_pipeline(candidate)
        stages = find_stages(candidate, costs, seconds, devices)
        if not isinstance(stages, OversizedCandidate):
            return True
    return False


def _count_cells(models: Models, resources: Resources, constraints: Constraints) -> int:
    """Returns the number of cells. Calls `models` only as the search does later."""
    rows = max(resources.batch_size // (constraints.num_micro_batches or 1), 1)
    return models(rows)[0].num_cells


@dataclasses.dataclass(frozen=True)
class _Setting:
    """Devices and constraints with which a model does not fit."""

    models: Models
    resources: Resources
    constraints: Constraints

    def suggest_changes(self) -> str:
        oversized_cell = self._oversized_cell()
        suggestions = []
        if not (oversized_cell or self.resources.devices[0].shares_memory):
            suggestions.append(self._more_devices())
        for changes in (
            self._fewer_rows(),
            self._larger_devices(),
            *([change] for change in self._fewer_limits()),
        ):
            fitting = (text for text, setting in changes if setting._fits())
            suggestions += itertools.islice(fitting, 1)
        texts = dict.fromkeys(filter(None, suggestions))
        if texts:
            return f"It would fit {', or '.join(texts)}. {oversized_cell}".rstrip()
        if oversized_cell:
            return f"{oversized_cell} Make cells smaller."
        return (
            "No single change makes it fit: neither more devices, up to "
            f"{_MAX_DEVICES:,}, nor fewer rows, larger devices, or one constraint "
            "less. Make cells smaller, or make several of these changes."
        )

    def _fits(self) -> bool:
        try:
            return fits(self.models, self.resources, self.constraints)
        except ValueError:  # The changed resources contradict the constraints.
            return False

    def _oversized_cell(self) -> str:
        """Returns a sentence on the largest cell if no device can hold it, else ""."""
        rows = self.resources.batch_size
        costs, _ = self.models(rows // (self.constraints.num_micro_batches or rows))
        needed, cell = max((x, -i) for i, x in enumerate(min_bytes_by_cell(costs)))
        if needed <= self.resources.usable_bytes:
            return ""
        text = bytes_text(needed)
        return f"More devices do not help: cell {-cell} alone needs at least {text}."

    def _more_devices(self) -> str:
        """Returns text that names the smallest sufficient number of devices, or ""."""
        but, constraints = "", self.constraints
        if _NUM_DEVICES in constraints.given:  # With it, no more could be used.
            but = f" without {constraints.text(_NUM_DEVICES)}"
            constraints = constraints.without(_NUM_DEVICES)

        def on(number: int) -> _Setting:
            changed = dataclasses.replace(self, constraints=constraints)
            return changed._with(self.resources.of_number(number))

        def fits_on(number: int) -> bool:
            return on(number)._fits()

        low = self.resources.num_devices
        if but and fits_on(low):
            return ""  # Dropping only the constraint is another suggestion.
        doublings = [low << i for i in range(1, (_MAX_DEVICES // low).bit_length())]
        num_cells = _count_cells(self.models, self.resources, constraints)
        most_used = {num_cells} if num_cells > low else set()  # By a pipeline.
        for high in sorted({*doublings, *most_used}):
            if fits_on(high):
                least = bisect.bisect_left(range(high), True, low + 1, key=fits_on)
                return f"on {on(least).resources}{but}"
            low = high
        return ""

    def _fewer_rows(self) -> Iterator[_Change]:
        rows = self.resources.batch_size
        while rows := rows // 2:
            plural = "s" if rows > 1 else ""
            changed = dataclasses.replace(self.resources, batch_size=rows)
            yield f"with {rows} row{plural}", self._with(changed)

    def _larger_devices(self) -> Iterator[_Change]:
        """Yields changes to larger kinds on which a model needs the same bytes."""
        in_place = self.resources.devices[0].in_place
        for device in sorted(DEVICES.values(), key=lambda x: x.usable_bytes):
            changed = self.resources.of_kind(device)
            is_larger = changed.total_bytes > self.resources.total_bytes
            is_alike = device.in_place == in_place
            if is_larger and is_alike and self.resources.dtype in device.flops:
                yield f"on {changed}", self._with(changed)

    def _fewer_limits(self) -> Iterator[_Change]:
        if self.resources.memory_limit is not None:
            limit = f"{self.constraints.limit_name}={self.resources.memory_limit}"
            unlimited = dataclasses.replace(self.resources, memory_limit=None)
            yield f"without {limit}", self._with(unlimited)
        for name in self.constraints.given:
            without = self.constraints.without(name)
            changed = dataclasses.replace(self, constraints=without)
            yield f"without {self.constraints.text(name)}", changed

    def _with(self, resources: Resources) -> _Setting:
        return dataclasses.replace(self, resources=resources)


_Change = tuple[str, _Setting]  # A change as text, and the changed setting.
