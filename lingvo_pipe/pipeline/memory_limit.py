"""Which splits keep within a limit on the memory of each device."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.pipeline.pipelining_rules import count_parts
from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.splitting.allowed_stages import (
    Farthest,
    allows_a_cut,
    any_stages,
    farthest_ends,
    least_largest_ends,
)
from lingvo_pipe.pipeline.stage_memory import StageNeeds
from lingvo_pipe.pipeline.traced_cells import TracedCells

_ADVICE = (
    "Use more devices, or larger ones; or have less kept: recompute='always', schedule="
    "'1f1b', or more micro-batches of fewer examples each."
)


class MemoryLimit:
    """The limit of a pipeline, and what its stages would need."""

    def __init__(
        self,
        p: InstantiableParams,
        where: str,
        schedule: Schedule,
        cells: TracedCells,
        recomputed: Sequence[bool],
    ):
        """Initialises the limit.

        Args:
            p: params of a PipeliningLayer that has one.
            where: the layer's path.
            schedule: for training.
            cells: the layer's.
            recomputed: for each cell whether it is where the schedule recomputes.
        """
        self._p = p
        self._where = where
        self._schedule = schedule
        self._cells = cells
        self._memory = cells.memory(recomputed, count_parts(p, where) // p.num_replicas)
        self._needs = StageNeeds(self._memory, schedule)
        homes = schedule.device_of_stage()
        self._shared = [list(homes.values()).count(homes[s]) for s in sorted(homes)]
        self._is_on_first = [homes[s] == homes[0] for s in sorted(homes)]

    def farthest(self) -> Farthest:
        """How far each stage may reach.

        One of several stages on a device may need its share of the limit.

        Raises:
            ValueError: if no split keeps within the limit.
        """
        alike = zip(self._needs.alike(), self._shared, self._is_on_first, strict=True)
        farthest = farthest_ends(
            self._device_bytes,
            self._p.memory_limit,
            len(self._cells.calls),
            list(alike),
        )
        if not allows_a_cut(farthest):
            self._refuse_all()
        return farthest

    def check(self, ends: Sequence[int]) -> None:
        """Raises ValueError if a device of this split needs more."""
        with_loss = [*ends[:-1], self._stop(ends[-1])]
        needed = self._memory.of_devices(self._schedule, with_loss)
        homes = self._schedule.device_of_stage()
        needed[homes[0]] += self._cells.before_bytes
        large = {i: n for i, n in enumerate(needed) if n > self._p.memory_limit}
        if large:
            devices = ", ".join(f"device {i} {n:,}" for i, n in large.items())
            stages = "; ".join(
                self._stage_text(stage, *pair)
                for stage, pair in enumerate(itertools.pairwise([0, *ends]))
                if homes[stage] in large
            )
            raise ValueError(
                f"memory_limit of {self._where} is {self._limit_text} bytes a device; "
                f"with splits={list(ends)} {devices}. Of these have {stages}. Raise "
                f"the limit; or set splits='auto', which keeps within it. {_ADVICE}"
            )

    def _device_bytes(self, stage: int, start: int, end: int) -> int:
        """What a device would need if all its stages were like this one."""
        alone = self._needs(stage, start, self._stop(end))
        before = self._cells.before_bytes if self._is_on_first[stage] else 0
        return alone * self._shared[stage] + before

    def _stop(self, end: int) -> int:
        """The end of a stage, the loss behind the last cell included."""
        return end + (end == len(self._cells.calls))

    def _refuse_all(self) -> None:
        """Raises ValueError: there is no split."""
        cells, num_stages = self._p.cell_tpl, self._schedule.num_stages
        everything = any_stages(len(cells), num_stages)
        ends = least_largest_ends(self._device_bytes, everything)
        assert ends is not None  # There is a cell for each stage.
        stages = list(enumerate(itertools.pairwise([0, *ends])))
        least, largest = max((self._device_bytes(s, *pair), s) for s, pair in stages)
        least_alone = [
            min(self._device_bytes(stage, i, i + 1) for stage, _ in stages)
            for i in range(len(cells))
        ]
        alone = "; ".join(
            f"cell {i}, {cells[i].cls.__name__}, with {needed:,}"
            for i, needed in enumerate(least_alone)
            if needed > self._p.memory_limit
        )
        raise ValueError(
            f"memory_limit of {self._where}: no split into {num_stages} stages keeps "
            f"within {self._limit_text} bytes a device. The least that would do is "
            f"{least:,}, with splits={ends}: "
            f"{self._stage_text(largest, *stages[largest][1])}"
            f"{self._share_text(largest)}. "
            + (f"Too large by themselves: {alone}. " if alone else "")
            + _ADVICE
        )

    def _stage_text(self, stage: int, start: int, end: int) -> str:
        """What makes up the need of a stage."""
        stop = self._stop(end)
        parts = {
            "weights": self._memory.weights(start, stop),
            "totals of their gradients": self._memory.totals(start, stop),
            "kept of micro-batches": self._needs.kept(stage, start, stop),
        }
        if stage == 0 and self._cells.before_bytes:
            parts["layers before"] = self._cells.before_bytes
        last = f" to {end - 1}" if end > start + 1 else ""
        return f"stage {stage}, cells {start}{last}: " + ", ".join(
            f"{what} {number:,}" for what, number in parts.items()
        )

    def _share_text(self, stage: int) -> str:
        """What else counts, where several stages share the device of this one."""
        num_shared = self._shared[stage]
        if num_shared == 1:
            return ""
        return f"; all but layers before {num_shared} times, for as many stages there"

    @property
    def _limit_text(self) -> str:
        return f"{self._p.memory_limit:,.15g}"
