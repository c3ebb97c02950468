"""What there is to run a model on, and the ways that it allows. Pure."""

from __future__ import annotations

import dataclasses

from lingvo_pipe.planner.candidate import Candidate, candidates
from lingvo_pipe.planner.company import Company
from lingvo_pipe.planner.constraints import Constraints
from lingvo_pipe.planner.device_model import DeviceModel


@dataclasses.dataclass(frozen=True)
class Resources:
    """What there is to run a model on, and what to run.

    Attributes:
        device: the kind of devices.
        num_devices: how many there are.
        batch_size: B, rows of a mini-batch.
    """

    device: DeviceModel
    num_devices: int
    batch_size: int

    def in_company(self, company: Company) -> Resources:
        """The same devices with what has been found of them together."""
        device = dataclasses.replace(self.device, company=company)
        return dataclasses.replace(self, device=device)

    def __str__(self) -> str:
        return f"{self.num_devices} {self.device.name}"


def allowed_candidates(
    resources: Resources, constraints: Constraints, num_cells: int
) -> list[Candidate]:
    """All ways to run a model of L cells, as far as constraints allow them.

    Raises:
        ValueError: if they allow none.
    """
    every = candidates(
        resources.num_devices,
        num_cells,
        resources.batch_size,
        resources.device.has_replicas,
    )
    no_replicas = "TPUs have no replicas yet, num_replicas is 1"
    rules = [] if resources.device.has_replicas else [no_replicas]
    return constraints.allowed(every, rules)
