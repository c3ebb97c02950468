"""Candidates: the ways to run a model, from which the planner chooses."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from lingvo_pipe.pipeline.schedules.by_name import SPLIT_BACKWARD_NAMES

_MAX_STAGES_PER_DEVICE = 8  # More would slow the search more than they gain.
# A schedule, its numbers of stages per device, and its recomputation policies.
_SCHEDULES = (
    ("gpipe", (1,), ("never", "except_last", "always")),
    ("1f1b", (1,), ("never", "always")),
    ("interleaved", range(2, _MAX_STAGES_PER_DEVICE + 1), ("never", "always")),
    ("zero_bubble", (1,), ("never",)),
    ("interleaved_zero_bubble", (2,), ("never",)),
    ("zero_bubble_v", (2,), ("never",)),
    ("v_half", (2,), ("never",)),
    ("v_min", (2,), ("never",)),
    ("dualpipe_v", (2,), ("never",)),
)
SCHEDULES = tuple(name for name, *_ in _SCHEDULES)
_VARIANTS = [
    (stages, (schedule, policy, "never"))
    for schedule, numbers, policies in _SCHEDULES
    for stages, policy in itertools.product(numbers, policies)
]
OFFLOADS = ("never", "always")
# Schedules whose stages may differ in their roles (see roles_by_stage.py), and the
# passes during which such a stage copies.
BY_STAGE = {"gpipe": ("forward",), "1f1b": ("forward", "backward")}
_OFFLOADING = [(1, (schedule, "never", "always")) for schedule in ("gpipe", "1f1b")]
# On one device these are the same as 1f1b.
_MULTI_DEVICE_SCHEDULES = ("interleaved", *SPLIT_BACKWARD_NAMES)
_MAX_EXHAUSTIVE_DEVICES = 16  # Up to here the planner tries every number of devices.
_MAX_MICRO_BATCHES, _MAX_MICRO_BATCHES_PER_DEVICE = 1024, 16
# With fewer, each backward pass comes too soon after its forward pass.
_MIN_OFFLOADED_MICRO_BATCHES, _MIN_OFFLOADED_STAGES = 4, 3


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A way to run a model: M micro-batches on R replicas of K devices, V stages each.

    `recompute` is a recomputation policy, and `offload` is "always" or "never". Either
    may instead be the tuple of the cells that are recomputed or offloaded.
    """

    num_replicas: int
    num_devices: int
    stages_per_device: int
    num_micro_batches: int
    schedule: str
    recompute: str | tuple[int, ...]
    offload: str | tuple[int, ...] = "never"

    @property
    def offloads(self) -> bool:
        """True if cells are offloaded, as far as the schedule offloads."""
        return self.offload != "never"

    @property
    def is_by_stage(self) -> bool:
        """True if cells differ in their roles."""
        return isinstance(self.recompute, tuple) or isinstance(self.offload, tuple)

    @property
    def variant(self) -> tuple[Any, ...]:
        """The schedule, the recomputation policy, and whether it offloads."""
        return self.schedule, self.recompute, self.offload

    @property
    def has_own_recompute(self) -> bool:
        """True if `recompute` is the schedule's default."""
        default = "never" if self.schedule in SPLIT_BACKWARD_NAMES else "always"
        return self.recompute == default

    @property
    def num_stages(self) -> int:
        """The number of stages, K·V."""
        return self.num_devices * self.stages_per_device

    @property
    def total_devices(self) -> int:
        """The number of devices of all replicas, R·K."""
        return self.num_replicas * self.num_devices

    @property
    def micro_batches_per_replica(self) -> int:
        """The number of micro-batches of each replica, M / R."""
        return self.num_micro_batches // self.num_replicas

    def roles(self, num_cells: int) -> tuple[Collection[int], Collection[int]]:
        """Returns the cells that are recomputed, and those that are offloaded."""

        def cells(value: str | tuple[int, ...]) -> Collection[int]:
            if isinstance(value, str):
                return range(num_cells if value == "always" else 0)
            return value

        return cells(self.recompute), cells(self.offload)

    def params(self, boundaries: Sequence[int]) -> dict[str, Any]:
        """Returns a pipeline's params to run this way. Stages end at `boundaries`."""
        return {
            "splits": list(boundaries),
            "stages_per_device": self.stages_per_device,
            "num_replicas": self.num_replicas,
            "num_micro_batches": self.num_micro_batches,
            "schedule": self.schedule,
            "recompute": _value(self.recompute),
            **({"offload": _value(self.offload)} if self.offloads else {}),
        }

    def __str__(self) -> str:
        replicas = f"{self.num_replicas} x " if self.num_replicas > 1 else ""
        stages = f"V={self.stages_per_device} " if self.stages_per_device > 1 else ""
        offload = f", offload={_value(self.offload)}" if self.offloads else ""
        return (
            f"{replicas}K={self.num_devices} {stages}M={self.num_micro_batches} "
            f"{self.schedule}, recompute={_value(self.recompute)}{offload}"
        )


def _value(cells: str | tuple[int, ...]) -> str | list[int]:
    return cells if isinstance(cells, str) else list(cells)


def candidates(
    num_devices: int,
    num_cells: int,
    batch_size: int,
    with_replicas: bool = True,
    fixed: Sequence[int] = (),
    with_offload: bool = False,
) -> Iterator[Candidate]:
    """Yields all ways to run a model on up to N devices, N = `num_devices`.

    Each stage has at least one cell. Micro-batches are equal, and each has at least one
    example. There are several replicas only if `with_replicas`, and candidates that
    offload only if `with_offload`.

    Beyond 16 devices, the number of replicas divides N. The number of devices in each
    replica divides N too, or all devices are used, or each stage has one cell, with one
    to eight stages per device. There are at most 1,024 micro-batches, or 16 per device
    if this is more. These two rules do not exclude the numbers in `fixed`.
    """
    limit = max(_MAX_MICRO_BATCHES, _MAX_MICRO_BATCHES_PER_DEVICE * num_devices)
    numbers = [n for n in _divisors(batch_size) if n <= limit or n in fixed]
    variants = _VARIANTS + _OFFLOADING * with_offload
    for grid in _device_grids(num_devices, num_cells, fixed):
        if grid[0] > 1 and not with_replicas:
            continue
        for number, (stages, variant) in itertools.product(numbers, variants):
            candidate = Candidate(*grid, stages, number, *variant)
            if _can_run(candidate, num_cells):
                yield candidate


def _can_run(candidate: Candidate, num_cells: int) -> bool:
    num_devices, schedule = candidate.num_devices, candidate.schedule
    per_replica, remainder = divmod(candidate.num_micro_batches, candidate.num_replicas)
    return (
        not remainder
        and candidate.num_stages <= num_cells
        and (num_devices > 1 or schedule not in _MULTI_DEVICE_SCHEDULES)
        and (schedule != "interleaved" or per_replica % num_devices == 0)
        and (schedule != "dualpipe_v" or per_replica >= 2 * num_devices)
        and (not candidate.offloads or _copies(candidate))
    )


def _copies(candidate: Candidate) -> bool:
    """Returns whether copies are added to a candidate's schedule (see `offloaded`)."""
    if candidate.micro_batches_per_replica < _MIN_OFFLOADED_MICRO_BATCHES:
        return False
    return (
        candidate.schedule == "gpipe" or candidate.num_devices >= _MIN_OFFLOADED_STAGES
    )


def _device_grids(
    num_devices: int, num_cells: int, fixed: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Yields (number of replicas, number of devices in each replica) to try."""
    numbers = set(range(1, num_devices + 1))
    fully_cut = {num_cells // v for v in range(1, _MAX_STAGES_PER_DEVICE + 1)}
    if num_devices > _MAX_EXHAUSTIVE_DEVICES:
        numbers = {*_divisors(num_devices), *fixed}
    for num_replicas in sorted(numbers):
        for number in sorted({*numbers, *fully_cut, num_devices // num_replicas}):
            if 0 < num_replicas * number <= num_devices:
                yield num_replicas, number


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
