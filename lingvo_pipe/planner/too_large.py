"""A way to run a model that does not fit, and what it would need. Pure."""

from __future__ import annotations

import dataclasses
import functools

from lingvo_pipe.pipeline.splitting.allowed_stages import any_stages, least_largest_ends
from lingvo_pipe.planner.candidate import Candidate
from lingvo_pipe.planner.device_needs import DeviceNeeds

# With more cells than this all stages that there could be are not looked at: it would
# take minutes.
_MOST_CELLS = 400


@dataclasses.dataclass(frozen=True)
class TooLarge:
    """A candidate that does not fit.

    Attributes:
        candidate: which.
        needs: what its devices need.
        limit: bytes, with which it does not do.
    """

    candidate: Candidate
    needs: DeviceNeeds
    limit: int

    @property
    def is_bound(self) -> bool:
        """Whether `needed` may be less than would do."""
        return self.needs.num_cells > _MOST_CELLS

    @functools.cached_property
    def needed(self) -> int:
        """Bytes that its largest device would need, with the best stages."""
        if self.is_bound:
            return max(self.needs.least(), self.limit + 1)
        everything = any_stages(self.needs.num_cells, self.candidate.num_stages)
        ends = least_largest_ends(self.needs.of_stage, everything)
        assert ends is not None  # There is a cell for each stage.
        most = max(self.needs.of_devices(ends))
        if most > self.limit:
            return most
        # Several stages of a device are chosen as if all were like the largest.
        return self.needs.largest(ends)
