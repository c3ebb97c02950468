"""The devices for a model, the user's constraints, and the allowed candidates."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.planner.resources.candidate import Candidate, candidates
from lingvo_pipe.planner.resources.device_model import MEASURED, DeviceModel

_OWN = "has_own_recompute"
_RULES = (
    "all replicas together have at most the available devices",
    "the number of replicas divides the number of micro-batches, which divides the "
    "number of rows",
    "each stage has a cell",
    "interleaved has a number of micro-batches divisible by the number of devices",
    "zero-bubble schedules, v_half, v_min and dualpipe_v recompute nothing",
    "interleaved, zero-bubble schedules, v_half, v_min and dualpipe_v need several "
    "devices",
    "dualpipe_v has two micro-batches per device",
    "gpipe and 1f1b offload, from four micro-batches on, 1f1b from three devices on",
)


@dataclasses.dataclass(frozen=True)
class Resources:
    """The devices to run a model on, in order, and the size of its mini-batch, B.

    A candidate takes the first devices. With R replicas, the first R devices have the
    first stages, the next R devices the next stages, and so on:

        devices            A A A A T T    4xA,2xT
        replica.device     0.0 1.0 0.1 1.1 0.2 1.2
    """

    devices: tuple[DeviceModel, ...]
    batch_size: int
    dtype: str = "float32"  # The dtype that the model computes in.
    memory_limit: int | None = None  # The user's, in bytes per device.
    uses_all: bool = False  # Whether a candidate must use all devices.

    @property
    def num_devices(self) -> int:
        """The number of devices, N."""
        return len(self.devices)

    @functools.cached_property
    def kinds(self) -> list[tuple[int, DeviceModel]]:
        """The numbers of consecutive devices of one kind, with the kinds."""
        return [
            (len([*group]), kind) for kind, group in itertools.groupby(self.devices)
        ]

    @property
    def usable_bytes(self) -> int:
        """The bytes of the largest device that the model can use."""
        return max(device.usable_bytes for device in self.limited_devices)

    @property
    def total_bytes(self) -> int:
        """The bytes of all devices that the model can use."""
        return sum(device.usable_bytes for device in self.limited_devices)

    @property
    def have_host_links(self) -> bool:
        """True if the links of all devices to their hosts are known."""
        return all(kind.host_bandwidth for _, kind in self.kinds)

    @functools.cached_property
    def limited_devices(self) -> tuple[DeviceModel, ...]:
        """The devices with memory limits, hosts, and slowness relative to the first."""
        pairs = zip(self.kinds, self.limited_kinds, strict=True)
        return tuple(itertools.chain(*([x] * number for (number, _), x in pairs)))

    @property
    def limited_kinds(self) -> list[DeviceModel]:
        """The limited devices, one of each of `kinds`."""
        return [self._limited(kind) for _, kind in self.kinds]

    def of_pipeline(self, candidate: Candidate) -> tuple[DeviceModel, ...]:
        """Returns the limited devices of each of the candidate's replicas, in order."""
        return self.limited_devices[: candidate.total_devices : candidate.num_replicas]

    def has_equal_replicas(self, candidate: Candidate) -> bool:
        """Returns whether all replicas of a stage are on devices of one kind."""
        ends = itertools.accumulate(number for number, _ in self.kinds)
        crossed = (end for end in ends if end < candidate.total_devices)
        return not any(end % candidate.num_replicas for end in crossed)

    def of_number(self, number: int) -> Resources:
        """Returns the first devices, or more devices of the last kind."""
        more = (self.devices[-1],) * (number - self.num_devices)
        return dataclasses.replace(self, devices=(self.devices + more)[:number])

    def of_kind(self, kind: DeviceModel) -> Resources:
        """Returns as many devices, all of one kind."""
        return dataclasses.replace(self, devices=(kind,) * self.num_devices)

    def _limited(self, kind: DeviceModel) -> DeviceModel:
        memory, hosts, first = kind.memory, kind.hosts, self.devices[0]
        if self.memory_limit is not None:
            memory = min(memory, self.memory_limit + kind.reserved)
        if hosts is not None:
            number = hosts.count(self.num_devices)
            hosts = dataclasses.replace(hosts, number=number)
        slowness = 1.0
        if kind != first:
            slowness = first.speed(self.dtype) / kind.speed(self.dtype)
        return dataclasses.replace(kind, memory=memory, hosts=hosts, slowness=slowness)

    def __str__(self) -> str:
        return " and then ".join(itertools.starmap(_group_text, self.kinds))


def _group_text(number: int, kind: DeviceModel) -> str:
    noun = " device" if kind.name == MEASURED else ""
    plural = "s" if noun and number > 1 else ""
    num_hosts = 1 if kind.hosts is None else kind.hosts.count(number)
    on_hosts = f" on {num_hosts} hosts" if num_hosts > 1 else ""
    return f"{number} {kind.name}{noun}{plural}{on_hosts}"


@dataclasses.dataclass(frozen=True)
class Constraints:
    """The values that attributes of a `Candidate` must have.

    None allows any value. Without `may_offload` there are no candidates that offload,
    and errors do not name that as a constraint. `names` maps attributes to the user's
    names for them, if these differ.
    """

    num_replicas: int | None = None
    num_devices: int | None = None
    num_micro_batches: int | None = None
    schedule: str | None = None
    recompute: str | None = None
    offload: str | None = None
    has_own_recompute: bool | None = None
    may_offload: bool = True
    names: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False)

    def allowed(
        self, candidates: Iterable[Candidate], rules: Sequence[str] = ()
    ) -> list[Candidate]:
        """Returns the candidates that satisfy the constraints.

        `rules` are sentences for the error, about rules that all candidates follow.

        Raises:
            UserValueError: if no candidate does.
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
            hint=f"Planned ways follow rules: {'; '.join([*_RULES, *rules])}.",
        )

    @property
    def given(self) -> dict[str, int | str]:
        """The constrained values by attribute."""
        values = {**vars(self), "may_offload": None, "names": None}
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
    number, has_replicas = resources.num_devices, resources.devices[0].has_replicas
    all_candidates = candidates(
        *(number, num_cells, resources.batch_size, has_replicas, constraints.numbers),
        with_offload=constraints.may_offload and resources.have_host_links,
    )
    rules = []
    if not resources.have_host_links:
        rules.append("a device whose link to its host is not known offloads nothing")
    if not has_replicas:
        rules.append("TPUs have no replicas yet")
    if len(resources.kinds) > 1:
        rules.append("all replicas of a stage are on devices of one kind")
        all_candidates = filter(resources.has_equal_replicas, all_candidates)
    if resources.uses_all:
        rules.append(f"all {number} devices are used")
        all_candidates = (x for x in all_candidates if x.total_devices == number)
    return constraints.allowed(all_candidates, rules)
