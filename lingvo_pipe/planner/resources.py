"""What there is to run a model on, and the ways that it allows. Pure."""

from __future__ import annotations

import dataclasses

from lingvo_pipe.planner.candidate import Candidate, candidates
from lingvo_pipe.planner.company import Company
from lingvo_pipe.planner.constraints import Constraints
from lingvo_pipe.planner.device_model import MEASURED, DeviceModel


@dataclasses.dataclass(frozen=True)
class Resources:
    """What there is to run a model on, and what to run.

    Attributes:
        device: the kind of devices.
        num_devices: how many there are.
        batch_size: B, rows of a mini-batch.
        dtype: in which the model computes.
        memory_limit: bytes of each device, if not all that it has.
        uses_all: whether no device may be left over.
    """

    device: DeviceModel
    num_devices: int
    batch_size: int
    dtype: str = "float32"
    memory_limit: int | None = None
    uses_all: bool = False

    @property
    def usable(self) -> int:
        """Bytes of a device for the model."""
        return self.limited.usable

    @property
    def limited(self) -> DeviceModel:
        """The kind of devices, with no more memory than may be used."""
        if self.memory_limit is None:
            return self.device
        memory = min(self.device.memory, self.memory_limit + self.device.reserved)
        return dataclasses.replace(self.device, memory=memory)

    def in_company(self, company: Company) -> Resources:
        """The same devices with what has been found of them together."""
        device = dataclasses.replace(self.device, company=company)
        return dataclasses.replace(self, device=device)

    def __str__(self) -> str:
        devices = self.device.name
        if devices == MEASURED:
            devices += " device" + "s" * (self.num_devices > 1)
        return f"{self.num_devices} {devices}"


def allowed_candidates(
    resources: Resources, constraints: Constraints, num_cells: int
) -> list[Candidate]:
    """All ways to run a model of L cells, as far as constraints allow them.

    Raises:
        ValueError: if they allow none.
    """
    number = resources.num_devices
    every = candidates(
        number,
        num_cells,
        resources.batch_size,
        resources.device.has_replicas,
        constraints.numbers,
    )
    rules = []
    if not resources.device.has_replicas:
        rules.append("TPUs have no replicas yet, num_replicas is 1")
    if resources.uses_all:
        rules.append(f"all of the {number} devices are used")
        every = (x for x in every if x.num_replicas * x.num_devices == number)
    return constraints.allowed(every, rules)
