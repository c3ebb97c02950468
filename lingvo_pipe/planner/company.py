"""What devices of one machine take beside one another. Pure."""

from __future__ import annotations

from typing import NamedTuple


class Company(NamedTuple):
    """What was measured on so many devices at a time, and on one of them alone.

    Between the two all grows with each device by as much. Of more devices no more is
    known.

    Attributes:
        num_devices: how many there were, at least 2.
        slowdown: what cells take while all compute, by what they take alone.
        update_alone: seconds that it takes to begin the updates of all weights, where
            one device has them.
        update_spread: the same where all devices have some of them.
    """

    num_devices: int = 2
    slowdown: float = 1.0
    update_alone: float = 0.0
    update_spread: float = 0.0

    def slowed(self, num_busy: float) -> float:
        """What cells take while so many compute, by what they take alone."""
        return 1 + self._share(num_busy) * (self.slowdown - 1)

    def update_seconds(self, num_devices: int) -> float:
        """To begin the updates of weights that so many devices have."""
        more = self.update_spread - self.update_alone
        return self.update_alone + self._share(num_devices) * more

    def _share(self, number: float) -> float:
        return min((number - 1) / (self.num_devices - 1), 1.0)
