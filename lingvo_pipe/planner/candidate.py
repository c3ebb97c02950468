"""One way to run a model: what the planner chooses among. Pure."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

# A schedule, the numbers of stages that a device may have, and what it may recompute.
_MOST_STAGES = 8  # Of a device; more would cost the search more than they give.
_SCHEDULES = (
    ("gpipe", (1,), ("never", "except_last", "always")),
    ("1f1b", (1,), ("never", "always")),
    ("interleaved", range(2, _MOST_STAGES + 1), ("never", "always")),
    ("zero_bubble", (1,), ("never",)),
)
SCHEDULES = tuple(name for name, *_ in _SCHEDULES)
_ALL_TRIED = 16  # Devices, of which all numbers are tried.
_MOST_MICRO_BATCHES, _MOST_FOR_EACH = 1024, 16  # Altogether, and for each device.
_FOR_SEVERAL = ("interleaved", "zero_bubble")  # With one device they are as 1f1b.


@dataclasses.dataclass(frozen=True)
class Candidate:
    """How devices share a mini-batch.

    Attributes:
        num_replicas: R.
        num_devices: K, of a replica.
        stages_per_device: V.
        num_micro_batches: M, of all replicas.
        schedule: its name.
        recompute: a policy.
    """

    num_replicas: int
    num_devices: int
    stages_per_device: int
    num_micro_batches: int
    schedule: str
    recompute: str

    @property
    def way(self) -> tuple[str, str]:
        """The schedule and what it recomputes."""
        return self.schedule, self.recompute

    @property
    def has_own_recompute(self) -> bool:
        """Whether it recomputes what its schedule does where nothing else is said."""
        own = "never" if self.schedule == "zero_bubble" else "always"
        return self.recompute == own

    @property
    def num_stages(self) -> int:
        """K·V."""
        return self.num_devices * self.stages_per_device

    @property
    def micro_batches_each(self) -> int:
        """Of a replica."""
        return self.num_micro_batches // self.num_replicas

    def override(self, ends: Sequence[int]) -> str:
        """What --model_params_override says to run it."""
        values = {
            "splits (list)": list(ends),
            "stages_per_device": self.stages_per_device,
            "num_replicas": self.num_replicas,
            "num_micro_batches": self.num_micro_batches,
            "schedule": self.schedule,
            "recompute (str)": self.recompute,
        }
        return "; ".join(f"task.pipeline.{name} : {x}" for name, x in values.items())


def candidates(
    num_devices: int,
    num_cells: int,
    batch_size: int,
    with_replicas: bool = True,
    settled: Sequence[int] = (),
) -> Iterator[Candidate]:
    """All ways to run a model on so many devices.

    With more than 16 devices not all numbers are tried, which would take minutes: of
    replicas and of devices those that divide the number of devices; of devices also as
    many as there are for each replica, and as have a cell for each stage, with one to
    eight stages on each. Of micro-batches no more than 1,024 are tried, or 16 for each
    device: more hardly shorten the bubble. What is settled is tried in any case.

    Args:
        num_devices: N, of all replicas together; they may use fewer.
        num_cells: L; a stage has one at least.
        batch_size: B; a micro-batch has one example at least, and all have as many.
        with_replicas: whether several pipelines may run side by side.
        settled: numbers of replicas, devices or micro-batches.
    """
    most = max(_MOST_MICRO_BATCHES, _MOST_FOR_EACH * num_devices)
    numbers = [n for n in _divisors(batch_size) if n <= most or n in settled]
    for num_replicas, each in _shares(num_devices, num_cells, settled):
        if num_replicas > 1 and not with_replicas:
            continue
        for num_micro_batches in numbers:
            if num_micro_batches % num_replicas:
                continue
            for schedule, stages, policies in _SCHEDULES:
                for per_device, policy in itertools.product(stages, policies):
                    found = Candidate(
                        num_replicas,
                        each,
                        per_device,
                        num_micro_batches,
                        schedule,
                        policy,
                    )
                    if _can_run(found, num_cells):
                        yield found


def _can_run(candidate: Candidate, num_cells: int) -> bool:
    """Whether there are cells, devices and micro-batches enough for the schedule."""
    if candidate.num_stages > num_cells:
        return False
    if candidate.schedule in _FOR_SEVERAL and candidate.num_devices == 1:
        return False
    in_rounds = candidate.schedule == "interleaved"
    return not (in_rounds and candidate.micro_batches_each % candidate.num_devices)


def _shares(
    num_devices: int, num_cells: int, settled: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Replicas, and the devices of each."""
    every = set(range(1, num_devices + 1))
    most = {num_cells // number for number in range(1, _MOST_STAGES + 1)} - {0}
    if num_devices > _ALL_TRIED:
        every = {*_divisors(num_devices), *settled}
    for num_replicas in sorted(every):
        for number in sorted({*every, *most, num_devices // num_replicas}):
            if 0 < num_replicas * number <= num_devices:
                yield num_replicas, number


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
