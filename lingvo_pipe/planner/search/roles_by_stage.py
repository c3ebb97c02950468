"""Roles of cells by stage, where a device cannot stash all of its cells.

1F1B on four devices. A stage stashes (S) what fits. Of the others it offloads (O) as
many as are copied while it computes, and it recomputes the rest (R):

    stage              0        1        2        3
    micro-batches      4        3        2        1
    cells           R R O S  R O S S  S S S S  S S S S

Cells that free many bytes per second of their forward pass are recomputed, and cells
that free few are offloaded.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Sequence
from typing import NamedTuple

from lingvo_pipe.pipeline.memory.stage_needs import StageNeeds
from lingvo_pipe.pipeline.schedules.by_name import make_schedule
from lingvo_pipe.pipeline.schedules.offload import stage_kinds
from lingvo_pipe.pipeline.schedules.schedule import Kind
from lingvo_pipe.pipeline.splitting.balance import balanced_boundaries
from lingvo_pipe.pipeline.splitting.cell_costs import CellSeconds
from lingvo_pipe.planner.costs.device_needs import DeviceNeeds, OwnerShares
from lingvo_pipe.planner.costs.model_costs import ModelCosts, Models
from lingvo_pipe.planner.resources.candidate import BY_STAGE, Candidate
from lingvo_pipe.planner.resources.device_model import DeviceModel
from lingvo_pipe.planner.resources.resources import Resources
from lingvo_pipe.planner.search.candidate_evaluation import (
    Evaluation,
    evaluate_boundaries,
)

_MAX_TRIES = 8  # Numbers of offloaded cells that are tried in a stage.
# Whether cells may be recomputed, and offloaded. A schedule without recomputation has
# fewer operations, and offloads in other stages.
_KINDS = ((True, False), (True, True), (False, True))


class Roles(NamedTuple):
    """The cells of a stage that it does not stash, by index."""

    recomputed: Sequence[int]
    offloaded: Sequence[int]


def faster_by_stage(
    fastest: Sequence[Evaluation],
    models: Models,
    resources: Resources,
    may_offload: bool,
) -> list[Evaluation]:
    """Returns evaluations with roles by stage that are faster than those given.

    There is at most one for each schedule. It has the numbers of devices and of
    micro-batches of an evaluation that recomputes or offloads all cells. `fastest` are
    in the order of their step times.
    """
    best: dict[str, Evaluation] = {}
    tried = set()
    for evaluation in fastest:
        candidate = evaluation.candidate
        before = best.setdefault(candidate.schedule, evaluation)
        is_uniform = candidate.recompute == "always" or candidate.offloads
        if candidate.schedule not in BY_STAGE or not is_uniform:
            continue
        costs, seconds = models(resources.batch_size // candidate.num_micro_batches)
        devices = resources.of_pipeline(candidate)
        work = [cell.forward + cell.backward for cell in seconds]
        slowness = [device.slowness for device in devices]
        even = balanced_boundaries(
            work, len(devices), costs.boundary_bytes, slowness=slowness
        )
        searches = [
            RolesByStage(candidate, costs, seconds, devices, *kinds)
            for kinds in _KINDS[: None if may_offload else 1]
        ]
        key = dataclasses.replace(candidate, recompute="always", offload="never")
        for search, boundaries in itertools.product(
            searches, (tuple(evaluation.boundaries), tuple(even))
        ):
            if (key, search.kinds, boundaries) in tried:
                continue
            tried.add((key, search.kinds, boundaries))
            after = search.evaluate(boundaries)
            if after is not None and after.step_seconds < before.step_seconds:
                best[candidate.schedule] = before = after
    return [x for x in best.values() if x.candidate.is_by_stage]


class RolesByStage:
    """The choice of roles for a candidate with one stage per device.

    For the arguments see `evaluate` of candidate_evaluation.py. `recomputes` and
    `offloads` say what may be done to cells.
    """

    def __init__(
        self,
        candidate: Candidate,
        model: ModelCosts,
        seconds: Sequence[CellSeconds],
        devices: Sequence[DeviceModel],
        recomputes: bool,
        offloads: bool,
    ):
        self.kinds = recomputes, offloads
        self._candidate, self._model = candidate, model
        self._seconds, self._devices = seconds, devices
        schedule = make_schedule(
            candidate.schedule,
            candidate.num_devices,
            candidate.micro_batches_per_replica,
            recompute="always" if recomputes else "never",
            offload=[] if offloads else None,
            is_checked=False,
        )
        self._kinds = stage_kinds(schedule)
        self._needs = StageNeeds(model.memory, schedule)
        self._slots = OwnerShares(model.slot_bytes, candidate.num_replicas)

    def evaluate(self, boundaries: Sequence[int]) -> Evaluation | None:
        """Evaluates the candidate with roles for stages that end at `boundaries`.

        Returns None if no roles are found that fit, or if all cells can be stashed.
        """
        recomputed, offloaded = set[int](), set[int]()
        for stage, pair in enumerate(itertools.pairwise([0, *boundaries])):
            if (roles := self.of_stage(stage, *pair)) is None:
                return None
            recomputed.update(roles.recomputed)
            offloaded.update(roles.offloaded)
        candidate = dataclasses.replace(
            self._candidate,
            recompute=tuple(sorted(recomputed)) or "never",
            offload=tuple(sorted(offloaded)) or "never",
        )
        if not candidate.is_by_stage:
            return None
        needs = DeviceNeeds(candidate, self._model)
        pairs = zip(needs.by_device(boundaries), self._devices, strict=True)
        if any(num_bytes > device.usable_bytes for num_bytes, device in pairs):
            return None
        return evaluate_boundaries(needs, boundaries, self._seconds, self._devices)

    def of_stage(self, stage: int, start: int, end: int) -> Roles | None:
        """Returns roles with which a stage's cells fit, or None if none are found."""
        limit = self._devices[stage].usable_bytes - self._slots.largest(start, end)
        part, is_alone = self._model.part(start, end), self._candidate.num_replicas == 1
        cells = sorted(range(start, end), key=self._bytes_per_second, reverse=True)

        def roles(num_recomputed: int, num_offloaded: int) -> Roles:
            return Roles(cells[:num_recomputed], cells[len(cells) - num_offloaded :])

        def fits(*numbers: int) -> bool:
            from_start = ([i - start for i in chosen] for chosen in roles(*numbers))
            model = part.with_roles(*from_start)
            memory = model.memory if is_alone else model.replicated_memory
            return self._needs.of(memory)(stage, 0, len(part.calls)) <= limit

        may_recompute = Kind.RECOMPUTE in self._kinds[stage]
        hidden = self._num_hidden(stage, cells)
        fitting = []  # The fewest recomputed cells for each number of offloaded ones.
        for away in range(0, hidden + 1, max(hidden // _MAX_TRIES, 1)):
            most = (len(cells) - away) * may_recompute
            number = bisect.bisect_left(
                range(most + 1), True, key=lambda again: fits(again, away)
            )
            if number <= most:
                fitting.append((number, away))
            if number == 0:
                break
        return roles(*min(fitting)) if fitting else None

    def _bytes_per_second(self, cell: int) -> float:
        freed = self._residual_bytes([cell])
        return freed / max(self._seconds[cell].forward, 1e-12)

    def _residual_bytes(self, cells: Sequence[int]) -> int:
        """Returns the bytes of the cells' residuals, with each buffer once.

        The loss is a part of the last cell.
        """
        calls = [self._model.calls[cell] for cell in cells]
        if self._model.num_cells - 1 in cells:
            calls.append(self._model.calls[-1])  # The loss has the last cell's role.
        values = {value for call in calls for value in call.residual_values}
        sizes = self._model.value_bytes  # Values of the mini-batch are not copied.
        num_bytes = sum(sizes.get(value, 0) for value in values)
        return num_bytes + sum(call.residuals for call in calls)

    def _num_hidden(self, stage: int, cells: Sequence[int]) -> int:
        """Returns how many of the last `cells` are copied while the stage computes."""
        if Kind.OFFLOAD not in self._kinds[stage]:
            return 0
        device, passes = self._devices[stage], BY_STAGE[self._candidate.schedule]
        during = sum(getattr(self._seconds[i], name) for i in cells for name in passes)

        def seconds(number: int) -> float:
            copied = cells[len(cells) - number :]
            return device.copy_seconds(self._residual_bytes(copied))

        numbers = range(len(cells) + 1)
        hidden = during * device.slowness
        return bisect.bisect_right(numbers, hidden, key=seconds) - 1
