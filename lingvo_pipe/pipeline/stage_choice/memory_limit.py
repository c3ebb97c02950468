"""Limit on the memory of each device, and the stages that it allows."""

import functools
import itertools
import math
from collections.abc import Sequence

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.pipeline.cell_roles import CellRoles, cell_roles
from lingvo_pipe.pipeline.devices.device_names import device_name
from lingvo_pipe.pipeline.devices.stage_devices import must_compile
from lingvo_pipe.pipeline.memory.stage_memory import StageMemory
from lingvo_pipe.pipeline.memory.stage_needs import StageNeeds
from lingvo_pipe.pipeline.pipelining_rules import count_batch_shards
from lingvo_pipe.pipeline.schedules.by_name import (
    is_file,
    make_schedule,
    recomputes_by_default,
)
from lingvo_pipe.pipeline.schedules.offload import roles_in_stage, stage_kinds
from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.splitting.allowed_stages import (
    FeasibleEnd,
    feasible_ends,
    is_feasible,
    smallest_stages,
)
from lingvo_pipe.pipeline.stage_choice.traced_cells import TracedCells


class DoesNotFitError(UserValueError):
    """Error: the given stages, or all possible stages, need more than the limit.

    Attributes:
        has_oversized_cell: True if a cell by itself does not fit.
        smallest_limit: the smallest limit into which some stages would fit, in bytes.
            This is infinite if the stages were given.
        missing_bytes: bytes by which `smallest_limit` exceeds the limit.
    """

    has_oversized_cell = False
    smallest_limit = math.inf
    missing_bytes = math.inf


class MemoryLimit:
    """A pipeline's `memory_limit`, and the bytes that its stages need."""

    def __init__(
        self,
        p: InstantiableParams,
        path: str,
        schedule: Schedule,
        cells: TracedCells,
        device: str,
        roles: CellRoles,
    ):
        self._p, self._path = p, f"{path}.memory_limit"
        self._schedule, self._cells = schedule, cells
        self._device, self._num_shards = device, count_batch_shards(p, path)

        @functools.cache
        def memory(*flags: tuple[bool, ...]) -> tuple[StageMemory, StageNeeds]:
            stage_memory = self._memory_of(*flags)
            return stage_memory, StageNeeds(stage_memory, schedule)

        # By stage: for each cell, whether it would be recomputed, and offloaded there.
        self._roles = [
            tuple(map(tuple, roles_in_stage(kinds, roles.recomputed, roles.offloaded)))
            for kinds in stage_kinds(schedule)
        ]
        of_stages = [memory(*flags) for flags in self._roles]
        self._memories, self._needs = zip(*of_stages, strict=True)
        devices = schedule.stage_devices
        self._sharing = [devices.count(device) for device in devices]
        self._is_on_first = [device == devices[0] for device in devices]

    def feasible_end(self) -> FeasibleEnd:
        """Returns, for each stage and start, the last end within the limit.

        If a device has several stages, each stage may need an equal share of the limit.

        Raises:
            ValueError: if no partition fits.
        """
        stage_keys = zip(self._needs, self._needs[0].stage_keys(), strict=True)
        feasible_end = feasible_ends(
            self._device_bytes,
            self._p.memory_limit,
            len(self._cells.layers),
            list(zip(stage_keys, self._sharing, self._is_on_first, strict=True)),
        )
        if not is_feasible(feasible_end):
            self._raise_infeasible()
        return feasible_end

    def check(self, boundaries: Sequence[int]) -> None:
        """Raises ValueError if these stages exceed the limit of a device."""
        needed = self._of_devices(boundaries)
        device_of_stage = self._schedule.device_of_stage()
        large = {i: n for i, n in enumerate(needed) if n > self._p.memory_limit}
        if large:
            devices = ", ".join(f"device {i} needs {n:,}" for i, n in large.items())
            stages = "; ".join(
                self._stage_text(stage, *pair)
                for stage, pair in enumerate(itertools.pairwise([0, *boundaries]))
                if device_of_stage[stage] in large
            )
            advice = self._advice(boundaries)
            raise DoesNotFitError(
                f"{self._path}: expected at most {self._limit_text} bytes per device; "
                f"with splits={list(boundaries)}, {devices}: {stages}. Raise the limit,"
                f" or set splits='auto', which stays within it. {advice}"
            )

    def _memory_of(
        self, recomputed: Sequence[bool], offloaded: Sequence[bool]
    ) -> StageMemory:
        if device_name(self._device).has_host_memory:
            offloaded = ()
        num_accumulators = self._num_shards // self._p.num_replicas
        return self._cells.memory(recomputed, num_accumulators, offloaded)

    def _of_devices(self, boundaries: Sequence[int]) -> list[int]:
        pairs = itertools.pairwise([0, *boundaries])
        of_stages = [
            [flags[start:end] for flags in roles]
            for roles, (start, end) in zip(self._roles, pairs, strict=True)
        ]
        memory = self._memory_of(
            *(list(itertools.chain(*flags)) for flags in zip(*of_stages, strict=True))
        )
        with_loss = [*boundaries[:-1], self._with_loss(boundaries[-1])]
        needed = memory.of_devices(self._schedule, with_loss)
        needed[self._schedule.stage_devices[0]] += self._cells.prologue_bytes
        return needed

    def _device_bytes(self, stage: int, start: int, end: int) -> int:
        """Returns the bytes that a device needs if all its stages are like `stage`."""
        stage_bytes = self._needs[stage](stage, start, self._with_loss(end))
        prologue = self._cells.prologue_bytes if self._is_on_first[stage] else 0
        return stage_bytes * self._sharing[stage] + prologue

    def _with_loss(self, end: int) -> int:
        """Returns `end`, or one more for a stage with the last cell and so the loss."""
        return end + (end == len(self._cells.layers))

    def _raise_infeasible(self) -> None:
        cells, num_stages = self._p.cell_tpl, self._schedule.num_stages
        boundaries = smallest_stages(self._device_bytes, len(cells), num_stages)
        stages = list(enumerate(itertools.pairwise([0, *boundaries])))
        smallest, largest = max((self._device_bytes(s, *pair), s) for s, pair in stages)
        too_large = "; ".join(
            f"cell {i}, {cell.cls.__name__}, with {needed:,}"
            for i, cell in enumerate(cells)
            if (needed := min(self._device_bytes(k, i, i + 1) for k, _ in stages))
            > self._p.memory_limit
        )
        number, share = self._sharing[largest], ""
        if number > 1:
            share = f", all but the prologue {number} times, for its {number} stages"
        error = DoesNotFitError(
            f"{self._path}: no partition into {num_stages} stages fits into "
            f"{self._limit_text} bytes per device. The smallest sufficient limit is "
            f"{smallest:,}, with splits={boundaries}: "
            f"{self._stage_text(largest, *stages[largest][1])}{share}. "
            + (f"Too large by themselves: {too_large}. " if too_large else "")
            + self._advice(boundaries)
        )
        error.has_oversized_cell = bool(too_large)
        error.smallest_limit = smallest
        error.missing_bytes = smallest - self._p.memory_limit
        raise error

    def _stage_text(self, stage: int, start: int, end: int) -> str:
        stop = self._with_loss(end)
        sizes = {
            "weights": self._memories[stage].weights(start, stop),
            "gradient accumulators": self._memories[stage].accumulators(start, stop),
            "stashed micro-batches": self._needs[stage].stash(stage, start, stop),
        }
        if stage == 0 and self._cells.prologue_bytes:
            sizes["prologue"] = self._cells.prologue_bytes
        last = f" to {end - 1}" if end > start + 1 else ""
        return f"stage {stage}, cells {start}{last}, has " + ", ".join(
            f"{name} {size:,}" for name, size in sizes.items()
        )

    def _advice(self, boundaries: Sequence[int]) -> str:
        p, hints = self._p, []
        if p.offload is None:
            if not _recomputes_all(p):
                hints.append("recompute='always'")
            if self._offload_helps(boundaries):
                hints.append("offload='always'")
        if p.schedule == "gpipe":  # Stashes every micro-batch.
            hints.append("schedule='1f1b'")
        hints.append("more micro-batches of fewer examples each")
        return f"Use more or larger devices, or stash less: {' or '.join(hints)}."

    def _offload_helps(self, boundaries: Sequence[int]) -> bool:
        p, schedule = self._p.Copy().Set(offload="always"), self._schedule
        if must_compile(self._device):  # `check_offloads` refuses it.
            return False
        try:
            roles = cell_roles(p, self._path)
            other = make_schedule(
                p.schedule,
                schedule.num_devices,
                schedule.num_micro_batches,
                p.stages_per_device,
                roles.recompute,
                offload=roles.offload,
            )
        except UserValueError:
            return False
        limit = MemoryLimit(p, self._path, other, self._cells, self._device, roles)
        return max(limit._of_devices(boundaries)) < max(self._of_devices(boundaries))

    @property
    def _limit_text(self) -> str:
        return f"{self._p.memory_limit:,.15g}"


def _recomputes_all(p: InstantiableParams) -> bool:
    """Returns whether recompute='always' would change nothing or might be refused."""
    if is_file(p.schedule):
        return True
    if p.recompute is None:
        return recomputes_by_default(p.schedule)
    return bool(p.recompute == "always")
