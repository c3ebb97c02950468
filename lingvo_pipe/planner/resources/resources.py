"""The devices for a model, the user's constraints, and the allowed candidates. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.planner.resources.candidate import Candidate, candidates
from lingvo_pipe.planner.resources.device_model import MEASURED, Contention, DeviceModel

_OWN = "has_own_recompute"
_RULES = (
    "all replicas together have at most the available devices",
    "the number of replicas divides the number of micro-batches, which divides the "
    "number of rows",
    "each stage has a cell",
    "interleaved needs a number of micro-batches divisible by the number of devices",
    "zero-bubble schedules and dualpipe_v recompute nothing",
    "interleaved, zero-bubble schedules and dualpipe_v need several devices",
    "dualpipe_v needs two micro-batches per device",
)


@dataclasses.dataclass(frozen=True)
class Resources:
    """The devices to run a model on, and the size of its mini-batch, B."""

    device: DeviceModel
    num_devices: int
    batch_size: int
    dtype: str = "float32"  # The dtype that the model computes in.
    memory_limit: int | None = None  # The user's, in bytes per device.
    uses_all: bool = False  # Whether a candidate must use all devices.

    @property
    def usable_bytes(self) -> int:
        """The bytes of each device that the model can use."""
        return self.limited_device.usable_bytes

    @property
    def limited_device(self) -> DeviceModel:
        """The device model, with the user's memory limit and the number of hosts."""
        device, memory, hosts = self.device, self.device.memory, self.device.hosts
        if self.memory_limit is not None:
            memory = min(memory, self.memory_limit + device.reserved)
        if hosts is not None:
            number = hosts.count(self.num_devices)
            hosts = dataclasses.replace(hosts, number=number)
        return dataclasses.replace(device, memory=memory, hosts=hosts)

    def with_contention(self, contention: Contention) -> Resources:
        """Returns the same devices with this contention between them."""
        device = dataclasses.replace(self.device, contention=contention)
        return dataclasses.replace(self, device=device)

    def __str__(self) -> str:
        noun = " device" if self.device.name == MEASURED else ""
        plural = "s" if noun and self.num_devices > 1 else ""
        hosts = self.device.hosts
        number = 1 if hosts is None else hosts.count(self.num_devices)
        on_hosts = f" on {number} hosts" if number > 1 else ""
        return f"{self.num_devices} {self.device.name}{noun}{plural}{on_hosts}"


@dataclasses.dataclass(frozen=True)
class Constraints:
    """The values that attributes of a `Candidate` must have.

    None allows any value. `names` maps attributes to the user's names for them, if
    these differ.
    """

    num_replicas: int | None = None
    num_devices: int | None = None
    num_micro_batches: int | None = None
    schedule: str | None = None
    recompute: str | None = None
    has_own_recompute: bool | None = None
    names: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False)

    def allowed(
        self, candidates: Iterable[Candidate], rules: Sequence[str] = ()
    ) -> list[Candidate]:
        """Returns the candidates that satisfy the constraints.

        `rules` are sentences for the error, about rules that all candidates follow.

        Raises:
            UserValueError: if no candidate does. The error names the rules, and the
                constraints to change.
        """
        all_candidates = list(candidates)
        if allowed := [x for x in all_candidates if self._allows(x)]:
            return allowed
        constraints = " and ".join(map(self.text, self.given))
        fixes = [
            f"without {self._user_name(name)} it may be {choice}"
            for name in self.given
            if (choice := self._choice(name, all_candidates))
        ]
        raise UserValueError(
            f"No way to run the model has {constraints}: "
            f"{'; '.join(fixes) or 'leave several of them out'}.",
            hint=f"The rules: {'; '.join([*_RULES, *rules])}.",
        )

    @property
    def given(self) -> dict[str, int | str]:
        """The constrained values by attribute."""
        values = {**vars(self), "names": None}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def numbers(self) -> list[int]:
        """The constrained values that are numbers."""
        values = (self.num_replicas, self.num_devices, self.num_micro_batches)
        return [number for number in values if number is not None]

    @property
    def limit_name(self) -> str:
        """The user's name for the memory limit."""
        return self.names.get("memory_limit", "task.pipeline.memory_limit")

    def without(self, name: str) -> Constraints:
        nothing: dict[str, Any] = {name: None}
        return dataclasses.replace(self, **nothing)

    def text(self, name: str) -> str:
        """Returns an attribute's constraint as users write it, e.g. "schedule=1f1b"."""
        value = None if name == _OWN else self.given[name]
        return f"{self._user_name(name)}={value}"

    def _user_name(self, name: str) -> str:
        name = "recompute" if name == _OWN else name
        return self.names.get(name, name)

    def _allows(self, candidate: Candidate) -> bool:
        return all(getattr(candidate, name) == x for name, x in self.given.items())

    def _choice(self, name: str, all_candidates: Sequence[Candidate]) -> str:
        """Returns text listing an attribute's values that other constraints allow."""
        other_constraints = self.without(name)
        attribute = "recompute" if name == _OWN else name
        allowed = filter(other_constraints._allows, all_candidates)
        values = (str(getattr(x, attribute)) for x in allowed)
        return " or ".join(", ".join(dict.fromkeys(values)).rsplit(", ", 1))


def allowed_candidates(
    resources: Resources, constraints: Constraints, num_cells: int
) -> list[Candidate]:
    """Returns all ways to run a model of L cells that satisfy the constraints.

    Raises:
        UserValueError: if no way satisfies the constraints.
    """
    number, has_replicas = resources.num_devices, resources.device.has_replicas
    all_candidates = candidates(
        number, num_cells, resources.batch_size, has_replicas, constraints.numbers
    )
    rules = []
    if not has_replicas:
        rules.append("TPUs have no replicas yet")
    if resources.uses_all:
        rules.append(f"all {number} devices are used")
        all_candidates = (x for x in all_candidates if x.total_devices == number)
    return constraints.allowed(all_candidates, rules)
