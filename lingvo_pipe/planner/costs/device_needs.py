"""The memory that devices need if they run a model as a candidate says.

A stage's cells are assigned to the R replicas in turn, so a replica owns whole cells:

cells     3  4  5  6  7        of a stage that starts at cell 3
replica   0  1  0  1  0        owns the cell's weights if R = 2
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
import operator
from collections.abc import Hashable, Iterable, Sequence

from lingvo_pipe.pipeline.memory.host_bytes import host_bytes, offloaded_bytes
from lingvo_pipe.pipeline.memory.stage_memory import OperationBytes, StageMemory
from lingvo_pipe.pipeline.memory.stage_needs import StageNeeds
from lingvo_pipe.pipeline.schedules.by_name import make_schedule
from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.simulation.timeline import Timeline
from lingvo_pipe.pipeline.splitting.allowed_stages import smallest_stages
from lingvo_pipe.planner.costs.model_costs import ModelCosts
from lingvo_pipe.planner.resources.candidate import Candidate

# With more cells, a bound is used: a search for the best stages would take minutes.
_MAX_CELLS = 400


class OwnerShares:
    """The bytes of a stage's cells that each of R replicas owns."""

    def __init__(self, cell_bytes: Sequence[int], num_replicas: int):
        self._num_replicas = num_replicas
        # Entry i is the sum of cells i, i + R, i + 2R, ...; 0 beyond the last cell.
        self._sums = [*cell_bytes, *[0] * num_replicas]
        for i in reversed(range(len(cell_bytes))):
            self._sums[i] += self._sums[i + num_replicas]

    def by_replica(self, start: int, end: int) -> list[int]:
        """Returns each replica's bytes for the stage with cells `start` to `end`."""
        size, sums = self._num_replicas, self._sums
        return [
            sums[first] - sums[end + (first - end) % size]
            for first in range(start, start + size)
        ]

    def largest(self, start: int, end: int) -> int:
        """Returns the most bytes of any replica. They never fall as `end` grows."""
        return max(self.by_replica(start, end))

    def lower_bound(self, start: int, end: int) -> int:
        """Returns an even share of the bytes, which never rises as `start` grows."""
        return -(-sum(self.by_replica(start, end)) // self._num_replicas)


class DeviceNeeds:
    """The bytes that devices need: weights, accumulators, slots, stash and workspace.

    If `schedule` is None, it is built on first use. `lacking` has the bytes by which
    each device's memory is smaller than the largest; () stands for equal devices. They
    are added to a device's needs, so that all devices have one limit, the largest
    device's. `by_device` and `together` do not add them.
    """

    def __init__(
        self,
        candidate: Candidate,
        model: ModelCosts,
        schedule: Schedule | None = None,
        lacking: Sequence[int] = (),
    ):
        self.candidate = candidate
        if candidate.offloads or candidate.is_by_stage:
            model = model.with_roles(*candidate.roles(model.num_cells))
        self.model = model
        self.lacking = lacking or [0] * candidate.num_devices
        self._by_device: dict[tuple[int, ...], list[int]] = {}  # By boundaries.
        if schedule is not None:
            self.schedule = schedule

    @functools.cached_property
    def schedule(self) -> Schedule:
        """The candidate's schedule, not checked yet."""
        c = self.candidate
        return make_schedule(
            c.schedule,
            c.num_devices,
            c.micro_batches_per_replica,
            c.stages_per_device,
            c.recompute,
            offload=c.offload if c.offloads else None,
            is_checked=False,
        )

    @functools.cached_property
    def stage_keys(self) -> Sequence[Hashable]:
        """A key for each stage. Stages with the same key need the same bytes."""
        return list(zip(self._needs.stage_keys(), self._lacking_of_stage, strict=True))

    @functools.cached_property
    def _lacking_of_stage(self) -> Sequence[int]:
        return [self.lacking[device] for device in self.schedule.stage_devices]

    @functools.cached_property
    def _slots(self) -> OwnerShares:
        return OwnerShares(self.model.slot_bytes, self.candidate.num_replicas)

    @functools.cached_property
    def _host_slots(self) -> OwnerShares:
        slots = self.model.host_slot_bytes or [0] * self.model.num_cells
        return OwnerShares(slots, self.candidate.num_replicas)

    @functools.cached_property
    def _needs(self) -> StageNeeds:
        return StageNeeds(self._memory, self.schedule)

    @functools.cached_property
    def _memory(self) -> StageMemory:
        is_alone = self.candidate.num_replicas == 1
        return self.model.memory if is_alone else self.model.replicated_memory

    def by_device(self, boundaries: Sequence[int]) -> list[int]:
        """Returns each device's peak bytes, for stages that end at `boundaries`.

        If replicas differ, counts the replica whose device needs the most.
        """
        key = tuple(boundaries)
        if key not in self._by_device:
            self._by_device[key] = self._count_by_device(boundaries)
        return self._by_device[key]

    def _count_by_device(self, boundaries: Sequence[int]) -> list[int]:
        needed = self._memory.of_devices(self.schedule, self._ends(boundaries))
        return list(map(operator.add, needed, self._owned(self._slots, boundaries)))

    def copied(self, boundaries: Sequence[int]) -> list[int]:
        """Returns the bytes of each stage's copy of a micro-batch to the host."""
        ends = self._ends(boundaries)
        return offloaded_bytes(self._memory, self.schedule, ends)

    def on_hosts(self, boundaries: Sequence[int]) -> list[int]:
        """Returns each device's peak bytes on its host: offloaded stash, and slots."""
        copies = host_bytes(self._memory, self.schedule, self._ends(boundaries))
        slots = self._owned(self._host_slots, boundaries)
        return list(map(operator.add, copies, slots))

    def largest(self, boundaries: Sequence[int]) -> int:
        """Returns the most bytes that a device needs."""
        return max(map(operator.add, self.by_device(boundaries), self.lacking))

    def together(self, boundaries: Sequence[int], timeline: Timeline) -> int:
        """Returns the peak of the bytes that one replica's devices need together."""
        ends = self._ends(boundaries)
        operations = self.model.memory.by_operation(self.schedule, ends)
        return joint_peak(operations, timeline) + sum(self.model.slot_bytes)

    def for_stage(self, stage: int, start: int, end: int) -> int:
        """Returns the bytes of a device on which all stages are like `stage`."""
        number = self.candidate.stages_per_device
        num_bytes = self._needs(stage, start, self._stop(end), number)
        num_bytes += self._slots.largest(start, end) * number
        return num_bytes + self._lacking_of_stage[stage]

    def share(self, stage: int, start: int, end: int) -> int:
        """Returns the bytes of a device whose stages, all like `stage`, peak together.

        If no stage's share exceeds a limit, no device exceeds it.
        """
        stage_bytes = self._needs(stage, start, self._stop(end))
        stage_bytes += self._slots.largest(start, end)
        stage_bytes *= self.candidate.stages_per_device
        return stage_bytes + self._lacking_of_stage[stage]

    def upper_bound(self, boundaries: Sequence[int]) -> int:
        """Returns the largest `share` of all stages. It is no less than `largest`."""
        stages = enumerate(itertools.pairwise([0, *boundaries]))
        return max(self.share(stage, *pair) for stage, pair in stages)

    def can_fit(self, limit: int) -> bool:
        """Returns whether stages fit into `limit` bytes, which the largest device has.

        Gives each stage as many of the remaining cells as it can hold. True may be
        wrong, since values from which a recomputation starts are ignored. False may be
        wrong only with several stages on a device, which are assumed to be alike.
        """
        if self.weights_share() > limit:
            return False
        num_cells, end = self.model.num_cells, 0
        for stage in range(self.schedule.num_stages):
            size = functools.partial(self._lower_bound, stage, end)
            while end < num_cells and size(end + 1) <= limit:
                end += 1
        return end == num_cells

    def weights_share(self) -> float:
        """Returns the mean bytes per device of weights, accumulators and slots."""
        slots = sum(self.model.slot_bytes) / self.candidate.num_replicas
        held = self.model.memory.held(0, self.model.num_cells)
        return (held + slots + sum(self.lacking)) / self.candidate.num_devices

    def even_share(self) -> float:
        """Returns roughly the bytes of a device if all devices needed equally many."""
        return self._lower_bound(0, 0, self.model.num_cells) / self.schedule.num_stages

    def min_limit(self) -> int:
        """Returns the lowest limit for which `can_fit` returns True."""
        everything = self._lower_bound(0, 0, self.model.num_cells)
        limits = range(everything + max(self.lacking))
        return bisect.bisect_left(limits, True, key=self.can_fit)

    def _lower_bound(self, stage: int, start: int, end: int) -> int:
        number = self.candidate.stages_per_device
        num_bytes = self._needs.lower_bound(stage, start, self._stop(end), number)
        num_bytes += self._slots.lower_bound(start, end) * number
        return num_bytes + self._lacking_of_stage[stage]

    def _owned(self, shares: OwnerShares, boundaries: Sequence[int]) -> list[int]:
        """Returns each device's bytes, in the replica that owns the most there."""
        device_of_stage = self.schedule.device_of_stage()
        stages: list[list[tuple[int, int]]] = [[] for _ in self.schedule.columns]
        for stage, pair in enumerate(itertools.pairwise([0, *boundaries])):
            stages[device_of_stage[stage]].append(pair)
        by_replica = ((shares.by_replica(*pair) for pair in pairs) for pairs in stages)
        return [max(map(sum, zip(*owned, strict=True))) for owned in by_replica]

    def _ends(self, boundaries: Sequence[int]) -> list[int]:
        return list(map(self._stop, boundaries))

    def _stop(self, end: int) -> int:
        """Returns `end`, or one more for the loss if the stage has the last cell."""
        return end + (end == self.model.num_cells)


def joint_peak(devices: Sequence[Iterable[OperationBytes]], timeline: Timeline) -> int:
    """Returns the peak of a memory that several devices share, such as CPU devices.

    device 0    |##|   |##|        bytes during operations, and between them
    device 1       |###|  |###|
                     ^             joint peak: at most the sum of both devices' peaks

    `devices` holds for each device its bytes before the first operation, and then the
    bytes of each of its operations. `timeline` tells when these operations run.
    """
    now, changes = 0, list[tuple[float, int]]()
    for (first, *operations), column in zip(devices, timeline.columns, strict=True):
        now, before = now + first.during, first.after
        for used, timed in zip(operations, column, strict=True):
            changes += [
                (timed.start, used.during - before),
                (timed.end, used.after - used.during),
            ]
            before = used.after
    peak = now
    for _, change in sorted(changes):  # At the same time, memory is freed first.
        now += change
        peak = max(peak, now)
    return peak


def min_bytes_by_cell(model: ModelCosts) -> list[int]:
    """Returns each cell's bytes on a device that trains it alone on a micro-batch."""
    return list(map(operator.add, model.slot_bytes, model.memory.by_cell()))


@dataclasses.dataclass(frozen=True)
class OversizedCandidate:
    """A candidate whose `needs` exceed the `limit`, the bytes of the largest device."""

    needs: DeviceNeeds
    limit: int

    @property
    def candidate(self) -> Candidate:
        return self.needs.candidate

    @property
    def is_bound(self) -> bool:
        """True if `needed_bytes` is only a lower bound."""
        return self.needs.model.num_cells > _MAX_CELLS

    @property
    def order(self) -> tuple[bool, float]:
        """A sort key, roughly by bytes. Candidates with too large weights come last."""
        weights = self.needs.weights_share()
        if weights > self.limit:
            return True, weights
        return False, self.needs.even_share()

    @functools.cached_property
    def needed_bytes(self) -> int:
        """The most bytes that a device needs, with stages that keep this number low."""
        if self.is_bound:
            return max(self.needs.min_limit(), self.limit + 1)
        boundaries = smallest_stages(
            self.needs.share, self.needs.model.num_cells, self.candidate.num_stages
        )
        largest = self.needs.largest(boundaries)
        if largest > self.limit:
            return largest
        # The stages were chosen as if all stages of a device were like its largest.
        return self.needs.upper_bound(boundaries)

    @property
    def excess(self) -> int:
        """The bytes that a device needs more than it has."""
        return self.needed_bytes - self.limit
