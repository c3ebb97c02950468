"""What devices need of memory, of one way to run a model. Pure."""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Hashable, Sequence

from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.stage_memory import StageNeeds
from lingvo_pipe.planner.candidate import Candidate
from lingvo_pipe.planner.home_shares import HomeShares
from lingvo_pipe.planner.model_costs import ModelCosts


class DeviceNeeds:
    """Bytes for weights, slots, totals of gradients, what is kept, and what works.

    Args:
        candidate: how the model is run.
        model: of its micro-batches.
        schedule: the candidate's.
    """

    def __init__(self, candidate: Candidate, model: ModelCosts, schedule: Schedule):
        self._model, self._schedule = model, schedule
        self._slots = HomeShares(model.slot_bytes, candidate.num_replicas)
        self._share = candidate.stages_per_device
        self._needs = StageNeeds(model.memory, schedule)

    def of_devices(self, ends: Sequence[int]) -> list[int]:
        """For each device of a replica its bytes: the most that any replica's needs.

        Args:
            ends: of the stages.
        """
        *most, last = ends
        found = self._model.memory.of_devices(self._schedule, [*most, self._stop(last)])
        working = [0] * len(found)
        slots: dict[int, list[list[int]]] = {device: [] for device in range(len(found))}
        homes = self._schedule.device_of_stage()
        for stage, pair in enumerate(itertools.pairwise([0, *ends])):
            device = homes[stage]
            slots[device].append(self._slots.of_replicas(*pair))
            working[device] = max(working[device], self._working(*pair))
        for device, of_stages in slots.items():
            found[device] += max(map(sum, zip(*of_stages, strict=True)))
        return list(map(int.__add__, found, working))

    def of_stage(self, stage: int, start: int, end: int) -> int:
        """For a device all of whose stages are like this one."""
        own = self._needs(stage, start, self._stop(end)) + self._slots.most(start, end)
        return own * self._share + self._working(start, end)

    def largest(self, ends: Sequence[int]) -> int:
        """The most that a device would need if all its stages were like its largest."""
        stages = enumerate(itertools.pairwise([0, *ends]))
        return max(self.of_stage(stage, *pair) for stage, pair in stages)

    @property
    def num_cells(self) -> int:
        """L."""
        return self._model.num_cells

    def alike(self) -> Sequence[Hashable]:
        """For each stage something that is the same for those of the same needs."""
        return self._needs.alike()

    def can_fit(self, limit: int) -> bool:
        """Whether stages can keep within a limit, as far as a quick look tells.

        Each takes what it can of the cells that are left, the values that it starts
        again from left out.
        """
        num_cells, end = self._model.num_cells, 0
        for stage in range(self._schedule.num_stages):
            size = functools.partial(self._at_least, stage, end)
            while end < num_cells and size(end + 1) <= limit:
                end += 1
            if end == num_cells:
                return True
        return False

    def share(self) -> float:
        """What a device would need, were all that is needed shared evenly."""
        everything = self._at_least(0, 0, self._model.num_cells)
        return everything / self._schedule.num_stages

    def least(self) -> int:
        """The least limit that `can_fit` takes."""
        num_cells = self._model.num_cells
        most = self._at_least(0, 0, num_cells)
        low = most // (num_cells * self._schedule.num_stages)
        return bisect.bisect_left(range(most), True, low, key=self.can_fit)

    def _at_least(self, stage: int, start: int, end: int) -> int:
        own = self._needs.at_least(stage, start, self._stop(end))
        own += self._slots.at_least(start, end)
        return own * self._share + self._working(start, end)

    def _working(self, start: int, end: int) -> int:
        return max(self._model.working[start : self._stop(end)])

    def _stop(self, end: int) -> int:
        """The end of a stage, the loss behind the last cell included."""
        return end + (end == self._model.num_cells)
